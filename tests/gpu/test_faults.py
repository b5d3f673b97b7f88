"""What can be wrong with a GPU's machine, told in one line. No GPU needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from cuda.bindings import driver
from decodepool_kernels.cuda import nvrtc
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.errors import CannotCompile
from decodepool_sizing.errors import BadDemand, CannotFit
from decodepool_sizing.kv import KVType
from decodepool_sizing.readers import file_reader
from decodepool_worker.engine.open import ModelFile, Wanted, read_model
from decodepool_worker.engine.open_cuda import planned_on

from tests.tiny.models import Tiny, write


def test_a_driver_older_than_the_compiler_is_told_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = driver.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    monkeypatch.setattr(driver, "cuModuleLoadData", lambda image: (refused, None))
    gpu = Gpu.__new__(Gpu)
    gpu.driver_version, gpu.capability = "12.2", 90
    with pytest.raises(CannotCompile) as told:
        gpu.load(b"", "add", 32, 0)
    line = str(told.value)
    assert "\n" not in line
    for part in ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", f"NVRTC {nvrtc.version()}", "CUDA 12.2", "sm_90", "install"):
        assert part in line


@dataclass
class OtherGpu:
    """A GPU of 24 GB of which others have taken a part."""

    name: str = "a GPU"
    memory_bytes: int = 24 << 30
    free: int = 20 << 30
    sm_count: int = 84
    capability: int = 86

    def free_bytes(self) -> int:
        return self.free


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write(Tiny(), path)
    with file_reader(path) as reader:
        return read_model(reader)


def plan(model: ModelFile, gpu: OtherGpu, **wanted: Any) -> Any:
    return planned_on(gpu, model, Wanted(192, device="cuda", **wanted))  # type: ignore[arg-type]


@pytest.mark.parametrize("memory_bytes", [22 << 30, 24 << 30, 25 << 30, 1 << 50])
def test_memory_that_the_gpu_does_not_have_free_is_refused_with_the_numbers(
    model: ModelFile, memory_bytes: int
) -> None:
    with pytest.raises(CannotFit, match=re.escape(f"a GPU has {24 << 30:,} bytes".replace(",", ""))) as told:
        plan(model, OtherGpu(), memory_bytes=memory_bytes)
    assert told.value.needed_bytes == memory_bytes
    assert told.value.available_bytes < memory_bytes


def test_a_plan_is_of_what_is_free(model: ModelFile) -> None:
    assert plan(model, OtherGpu(), memory_bytes=4 << 30).usable_bytes < 4 << 30
    most = plan(model, OtherGpu(), cache_reserve_bytes=1 << 20)
    assert 18 << 30 < most.usable_bytes < 20 << 30
    with pytest.raises(CannotFit):
        plan(model, OtherGpu(free=0))


def test_keys_and_values_that_the_kernels_do_not_keep_are_named(model: ModelFile) -> None:
    with pytest.raises(BadDemand, match="kv type f32"):
        plan(model, OtherGpu(), kv_type=KVType.F32)
