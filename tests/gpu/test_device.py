"""What is asked of a GPU is given back, and what it cannot have is refused with the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from cuda.bindings import driver
from decodepool_kernels.cuda.compile import image, target_of
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.errors import CannotCompile

from tests.gpu.test_engine import MakeFile, opened, tiny_file
from tests.tiny.catalogue import WEIGHT_TYPES

__all__ = ["tiny_file"]

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

GIVEN_BACK_BY = {
    "cuMemAlloc": "cuMemFree",
    "cuMemHostAlloc": "cuMemFreeHost",
    "cuModuleLoadData": "cuModuleUnload",
    "cuGraphInstantiate": "cuGraphExecDestroy",
    "cuStreamEndCapture": "cuGraphDestroy",
    "cuEventCreate": "cuEventDestroy",
    "cuStreamCreate": "cuStreamDestroy",
    "cuDevicePrimaryCtxRetain": "cuDevicePrimaryCtxRelease",
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these was called."""
    counts = Counter[str]()

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(driver, name)

        def counting(*args: Any) -> Any:
            counts[name] += 1
            return call(*args)

        return counting

    for name in (*GIVEN_BACK_BY, *GIVEN_BACK_BY.values()):
        monkeypatch.setattr(driver, name, counted(name))
    return counts


def test_an_engine_that_is_closed_has_given_everything_back(tiny_file: MakeFile, calls: Counter[str]) -> None:
    with opened(tiny_file(WEIGHT_TYPES[2])):
        pass
    assert {name: calls[name] for name in GIVEN_BACK_BY} == {name: calls[back] for name, back in GIVEN_BACK_BY.items()}
    assert all(calls[name] for name in GIVEN_BACK_BY)


def test_a_block_with_more_shared_memory_than_the_gpu_has_is_refused_with_the_numbers(gpu: Gpu) -> None:
    wanted, there = gpu.shared_bytes + 1024, gpu.shared_bytes
    with pytest.raises(CannotCompile, match=f"add needs {wanted} bytes of shared memory a block, the GPU has {there}"):
        gpu.load(image("add.cu", {}, target_of(gpu.capability)), "add", 256, wanted)
