"""Steps under way are two at most, and one that is refused changes nothing. No GPU needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.backend import CudaBackend
from decodepool_kernels.runs import OneRow
from decodepool_sizing.devices import WHOLE_HOPPER
from decodepool_worker.model.named_shapes import named_header
from numpy.typing import NDArray

from tests.gpu.counting import CountingGpu, backend_on


class Ended:
    """The end of a step that takes no time."""

    def set(self) -> None: ...
    def wait(self) -> None: ...


class ToldGpu(CountingGpu):
    """Has the int32 that it was brought, from the first address on."""

    def __init__(self) -> None:
        super().__init__(WHOLE_HOPPER)
        self.words = np.zeros(1 << 16, np.int32)
        self._begin: int | None = None

    def enter(self) -> None: ...
    def download(self, *args: object) -> None: ...
    def mark(self) -> Ended:
        return Ended()

    def upload(self, address: int, array: NDArray[Any], size_bytes: int | None = None) -> None:
        if array.dtype == np.int32:
            self._begin = address if self._begin is None else self._begin
            self.words[(address - self._begin) // 4 :][: array.size] = array


@pytest.fixture
def gpu() -> ToldGpu:
    return ToldGpu()


@pytest.fixture
def backend(gpu: ToldGpu) -> CudaBackend:
    return backend_on(gpu, named_header("llama-3-8b", "Q8_0"), context_tokens=256, max_rows=4, page_count=4)


def test_a_step_too_many_leaves_the_device_with_what_it_is_known_to_have(gpu: ToldGpu, backend: CudaBackend) -> None:
    for position in range(2):
        backend.begin([OneRow((0,), position, (1,), 0)])
    with pytest.raises(RuntimeError, match="2 steps are under way"):
        backend.begin([OneRow((3,), 0, (5,), 0)])
    known = backend.inputs.words
    assert (gpu.words[: known.size] == known).all()


def test_a_step_of_pages_that_are_not_there_takes_no_turn(backend: CudaBackend) -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="pages are needed"):
            backend.begin([OneRow((9,), 0, (1,), 0)])
    backend.begin([OneRow((0,), 0, (1,), 0)])()
