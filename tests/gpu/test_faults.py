"""What can be wrong with a GPU's machine, told in one line. No GPU needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from cuda.bindings import driver
from cuda.bindings import nvrtc as bindings
from decodepool_kernels.cuda import image_cache, nvrtc
from decodepool_kernels.cuda.compile import image, target_of
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.errors import CannotCompile, GpuFault
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_sizing.errors import BadDemand, CannotFit
from decodepool_sizing.kv import KVType
from decodepool_sizing.readers import file_reader
from decodepool_worker.engine.open import ModelFile, Wanted, read_model
from decodepool_worker.engine.open_cuda import planned_on

from tests.tiny.models import Tiny, write

SUCCESS, INVALID = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_IMAGE


def gpu_that_answers(monkeypatch: pytest.MonkeyPatch, load: Callable[[bytes], tuple[Any, Any]]) -> Gpu:
    """A GPU that is not there, whose driver answers so when it is to load an image."""
    monkeypatch.setattr(driver, "cuModuleLoadData", load)
    monkeypatch.setattr(driver, "cuModuleGetFunction", lambda module, entry: (SUCCESS, entry))
    gpu = Gpu.__new__(Gpu)
    monkeypatch.setattr(gpu, "_modules", [], raising=False)
    monkeypatch.setattr(gpu, "_blocks_per_sm", lambda handle, threads, shared_bytes: 1)
    gpu.driver_version, gpu.capability = "12.2", 90
    return gpu


def refused(monkeypatch: pytest.MonkeyPatch, status: driver.CUresult) -> str:
    """Return how a refused image is told."""
    gpu = gpu_that_answers(monkeypatch, lambda image: (status, None))
    with pytest.raises(CannotCompile) as told:
        gpu.load(b"", "add", 32, 0)
    return str(told.value)


def test_a_driver_older_than_the_compiler_is_told_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    line = refused(monkeypatch, driver.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
    assert "\n" not in line
    for part in ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", f"NVRTC {nvrtc.version()}", "CUDA 12.2", "sm_90", "install"):
        assert part in line


@pytest.mark.parametrize("name", ["INVALID_IMAGE", "NO_BINARY_FOR_GPU", "OUT_OF_MEMORY", "JIT_COMPILER_NOT_FOUND"])
def test_another_refusal_is_told_as_the_driver_has_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = refused(monkeypatch, getattr(driver.CUresult, f"CUDA_ERROR_{name}"))
    assert f"the driver refuses a kernel (CUDA_ERROR_{name})" in line
    assert "install" not in line


@pytest.mark.parametrize(("refusals", "compiles"), [(0, 0), (1, 1), (2, 1)])
def test_a_kept_image_that_the_driver_takes_for_none_is_compiled_anew_once(
    refusals: int, compiles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    image("add.cu", {}, target_of(90))
    (path,) = tmp_path.rglob("*.image")
    version, whole = path.parent.name, path.read_bytes()
    image_cache.keep(version, path.name, b"sealed as it came")
    answers, compiler = [INVALID] * refusals, Mock(wraps=nvrtc.compiled)
    monkeypatch.setattr(nvrtc, "compiled", compiler)
    library = KernelLibrary(gpu_that_answers(monkeypatch, lambda image: (answers.pop() if answers else SUCCESS, None)))
    with nullcontext() if refusals < 2 else pytest.raises(CannotCompile, match="CUDA_ERROR_INVALID_IMAGE"):
        library.function("add", {}, 32)
    assert compiler.call_count == compiles
    assert (path.read_bytes() == whole) == bool(compiles)


STARTS = {
    "no driver": (None, r"^no NVIDIA driver answers here: no libcuda; a driver for CUDA 13 .* `--device cpu` works"),
    "no GPU": ("CUDA_ERROR_NO_DEVICE", r"^no GPU is visible \(CUDA_ERROR_NO_DEVICE\).*CUDA_VISIBLE_DEVICES"),
    "another driver's module": (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "^the NVIDIA driver does not start here: .*MISMATCH",
    ),
}


@pytest.mark.parametrize(("status", "line"), STARTS.values(), ids=STARTS)
def test_a_driver_that_shows_no_gpu_is_told_with_what_to_look_at(
    status: str | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(flags: int) -> tuple[driver.CUresult]:
        if status is None:
            raise RuntimeError("no libcuda.")
        return (getattr(driver.CUresult, status),)

    monkeypatch.setattr(driver, "cuInit", start)
    with pytest.raises(GpuFault, match=line):
        Gpu()


@pytest.mark.parametrize("name", ["CUDA_ERROR_INVALID_DEVICE", "CUDA_ERROR_NO_DEVICE"])
def test_a_driver_that_starts_without_a_device_is_told_with_what_to_look_at(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "cuInit", lambda flags: (SUCCESS,))
    monkeypatch.setattr(driver, "cuDeviceGet", lambda ordinal: (getattr(driver.CUresult, name), None))
    with pytest.raises(GpuFault, match=rf"^the NVIDIA driver started and has no GPU 0 \({name}\): .*nvidia-smi -L"):
        Gpu()


def test_memory_that_is_refused_is_told_with_what_was_asked_and_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuMemAlloc", lambda size: (driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None))
    monkeypatch.setattr(driver, "cuMemGetInfo", lambda: (SUCCESS, 1000, 24 << 30))
    gpu = Gpu.__new__(Gpu)
    gpu.name = "a GPU"
    with pytest.raises(GpuFault, match=r"^a GPU refuses 1536 bytes .*OUT_OF_MEMORY\): 1000 bytes are free$"):
        gpu.allocate(1536)


@pytest.mark.parametrize("reason", ["no such file: libnvrtc.so.13\n  listdir:", "function nvrtcVersion is not found"])
@pytest.mark.parametrize(
    ("asked_first", "call"), [(nvrtc.version, "nvrtcVersion"), (nvrtc.architectures, "nvrtcGetSupportedArchs")]
)
def test_a_compiler_that_cannot_be_loaded_is_told_by_whatever_asks_it_first(
    asked_first: Callable[[], object], call: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise RuntimeError(reason)

    nvrtc.architectures.cache_clear()
    monkeypatch.setattr(bindings, call, missing)
    with pytest.raises(CannotCompile) as told:
        asked_first()
    first = reason.partition("\n")[0]
    assert str(told.value) == f"NVRTC cannot be loaded: {first}; {nvrtc.INSTALL}"


def test_a_compiler_without_its_builtins_is_told_by_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, log = bindings.nvrtcResult.NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, "cannot open builtins.\n  Look there."
    monkeypatch.setattr(bindings, "nvrtcCompileProgram", lambda program, count, options: (refused,))
    monkeypatch.setattr(nvrtc, "_log", lambda program: log)
    with pytest.raises(CannotCompile) as told:
        nvrtc.compiled("a.cu", b"", {}, ["-DROWS=1"])
    assert str(told.value) == f"NVRTC is not whole: cannot open builtins; {nvrtc.INSTALL}"


def test_what_does_not_compile_is_told_before_the_options() -> None:
    with pytest.raises(CannotCompile, match=r'^a.cu\(1\): error: identifier "y" is undefined') as told:
        nvrtc.compiled("a.cu", b"__device__ int x = y;", {}, ["-DROWS=1"])
    assert str(told.value).endswith("(a.cu -DROWS=1)")


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
