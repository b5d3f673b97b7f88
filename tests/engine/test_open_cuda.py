"""What is said of a GPU once an engine is on it. No GPU needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.errors import GpuFault
from decodepool_kernels.cuda.records import Weights
from decodepool_sizing.devices import gpu_memory
from decodepool_sizing.shape import read_shape
from decodepool_worker.engine import open_cuda
from decodepool_worker.engine.open import Loaded, ModelFile, Wanted, plan_worker
from decodepool_worker.model.named_shapes import named_header

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu

USED_BYTES = 99 << 30


class FakeGpu:
    """A GPU that tells what it is and, until it is lost, what is taken of it."""

    name = "NVIDIA H200"
    is_lost = False

    def __init__(self, capability: int = 90, driver_version: str = "13.0") -> None:
        self.capability, self.driver_version = capability, driver_version

    def used_bytes(self) -> int:
        if self.is_lost:
            raise GpuFault("the CUDA driver answered CUDA_ERROR_ILLEGAL_ADDRESS")
        return USED_BYTES


class FakeEngine:
    """An engine that is never stepped."""

    workspace_bytes, sessions_bytes, report = 5, 7, None


def opened_around(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """Open an engine around no weights, which nothing is checked of."""
    for name in ("require_arithmetic", "require_same_bits", "model_graph"):
        monkeypatch.setattr(open_cuda, name, lambda *_: None)
    monkeypatch.setattr(open_cuda, "stream_fingerprint", lambda *parts: " ".join(parts[-1]))
    monkeypatch.setattr(open_cuda, "CudaEngine", lambda *_, **__: FakeEngine())
    header = named_header("llama-3-8b", "Q8_0")
    model, wanted = ModelFile(header, read_shape(header)), Wanted(4096, 4, device="cuda")
    plan = plan_worker(model, wanted, gpu_memory(140 << 30, gpu.name))
    return open_cuda.opened_around(cast("Gpu", gpu), model, Weights({}, {}, 3), plan, wanted, digest="w")


def test_what_is_taken_of_a_gpu_is_told_when_it_is_lost_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    loaded = opened_around(gpu, monkeypatch)
    gpu.is_lost = True
    assert loaded.measured() == {
        "weight_bytes": 3,
        "workspace_bytes": 5,
        "sessions_and_cache_bytes": 7,
        "resident_bytes": USED_BYTES,
    }


@pytest.mark.parametrize(("capability", "counts"), [(90, False), (100, False), (990, True)], ids=str)
def test_the_driver_counts_where_it_compiles_the_kernels(
    monkeypatch: pytest.MonkeyPatch, capability: int, counts: bool
) -> None:
    """NVRTC does not know the last of them."""
    older, newer = (
        opened_around(FakeGpu(capability, version), monkeypatch).fingerprint for version in ("13.0", "13.1")
    )
    assert (older != newer) == counts
