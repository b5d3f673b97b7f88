"""`--device cuda` on a machine that has no GPU: every command ends with one line that says so."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from cuda.bindings import driver
from decodepool_kernels.cuda.compile import OLDEST_ARCHITECTURE
from decodepool_sizing.support import OLDEST_COMPUTE_CAPABILITY

from tests.cli.conftest import Call
from tests.cli.models import write_talking

HAS_DRIVER = Path("/proc/driver/nvidia/version").exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_talking(tmp_path_factory.mktemp("models") / "talking.gguf")


def commands(model: Path, out: Path) -> dict[str, list[object]]:
    return {
        "serve": ["serve", model, "--context", 64, "--port", 0],
        "generate": ["generate", model, "--prompt", "hello"],
        "logits": ["logits", model, "--tokens", "1,2", "--out", out / "x.npy"],
        "verify": ["verify", model],
        "verify for programs": ["verify", model, "--json"],
        "bench": ["bench", model, "--json"],
        "bench of a shape": ["bench", "--shape", "llama-3-8b", "--json"],
    }


@pytest.mark.skipif(HAS_DRIVER, reason="did not run: there is a GPU's driver here")
@pytest.mark.parametrize("name", [name for name in commands(Path(), Path()) if name != "serve"])
def test_a_machine_without_a_gpu_is_told_in_one_line(call: Call, model: Path, tmp_path: Path, name: str) -> None:
    done = call(*commands(model, tmp_path)[name], "--device", "cuda")
    assert (done.code, done.out) == (1, "")
    assert "no NVIDIA driver answers here" in done.err
    assert done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["generate", "bench of a shape"])
def test_a_missing_extra_is_told_with_what_installs_it(
    call: Call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in ("open_cuda", "random_cuda"):
        monkeypatch.setitem(sys.modules, f"decodepool_worker.engine.{module}", None)
    done = call(*commands(model, tmp_path)[name], "--device", "cuda")
    assert (done.code, done.out) == (1, "")
    assert "the `cuda` extra is not installed: " in done.err
    assert done.err.endswith("; `uv sync --inexact --extra cuda` installs it\n")
    assert done.err.count("\n") == 1


def test_a_driver_without_a_gpu_is_told_too(call: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = driver.CUresult.CUDA_ERROR_NO_DEVICE
    monkeypatch.setattr(driver, "cuInit", lambda flags: (missing,))
    done = call("generate", model, "--prompt", "hello", "--device", "cuda")
    assert done.code == 1
    assert "CUDA_ERROR_NO_DEVICE" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("name", commands(Path(), Path()))
def test_keys_and_values_that_no_gpu_keeps_are_the_options_fault(
    call: Call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delattr(driver, "cuInit")
    done = call(*commands(model, tmp_path)[name], "--device", "cuda", "--kv-type", "f32")
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"decodepool: --kv-type: on a GPU, .*nothing as f32; possible are f16(, q8_0)?\n", done.err)
    assert not list(tmp_path.iterdir())


def test_a_plan_refuses_the_gpus_that_the_compiler_refuses() -> None:
    assert 10 * float(OLDEST_COMPUTE_CAPABILITY) == OLDEST_ARCHITECTURE
