"""Steps under way are two at most, and one that is refused changes nothing. No GPU needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.backend import CudaBackend
from decodepool_kernels.cuda.draws import DeviceDraw
from decodepool_kernels.cuda.inputs import CHANGED_AT, CHANGED_END, NUMBER, WORDS_END
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
    """Has the int32 that steps brought: each looks for the number after the last, as sources/bring.cu does."""

    def __init__(self) -> None:
        super().__init__(WHOLE_HOPPER)
        self.words, self.waiting = np.zeros(1 << 16, np.int32), list[Callable[[], None]]()
        self._pinned: list[NDArray[np.int32]] = []

    def enter(self) -> None: ...
    def mark(self) -> Ended:
        return Ended()

    def pinned(self, words: int) -> NDArray[np.int32]:
        self._pinned.append(super().pinned(words))
        return self._pinned[-1]

    def captured(self, launches: object) -> Callable[[], None]:
        return lambda: self.waiting.append(self._bring)

    def run_steps(self) -> None:
        for step in self.waiting:
            step()
        self.waiting.clear()

    def _bring(self) -> None:
        number, turns = self.words[NUMBER] + 1, self._pinned[0].reshape(2, -1)
        brought = turns[number % 2]
        if brought[NUMBER] == number:
            end, changed_at, changed_end = brought[[WORDS_END, CHANGED_AT, CHANGED_END]]
            for part in (slice(end), slice(changed_at, changed_end)):
                self.words[: brought.size][part] = brought[part]


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
    gpu.run_steps()
    known = backend.inputs.words
    assert (gpu.words[: known.size] == known).all()


def test_steps_bring_what_changed_and_a_step_run_once_more_brings_nothing(gpu: ToldGpu, backend: CudaBackend) -> None:
    for position, pages in ((0, (2,)), (63, (2,)), (64, (2, 3)), (70, (1, 3)), (71, (1, 3))):
        ended = backend.begin([OneRow((0,), 5, (7,), None), OneRow(pages, position, (1,), 0)])
        backend.replay(2)
        gpu.run_steps()
        known = backend.inputs.words
        assert (gpu.words[: known.size] == known).all(), position
        ended()


def test_a_step_of_pages_that_are_not_there_takes_no_turn(backend: CudaBackend) -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="pages are needed"):
            backend.begin([OneRow((9,), 0, (1,), 0)])
    backend.begin([OneRow((0,), 0, (1,), 0)])()


@pytest.mark.parametrize("draw", [{"seed": 1 << 64}, {"position": 1 << 32}], ids=str)
def test_a_step_whose_draw_cannot_be_told_to_the_device_changes_nothing(
    gpu: ToldGpu, backend: CudaBackend, draw: dict[str, int]
) -> None:
    sound = DeviceDraw(1.0, 0, 1, 0, None, 0)
    for _ in range(3):
        with pytest.raises(OverflowError):
            backend.begin([OneRow((3,), 0, (5,), 0)], [replace(sound, **draw)])
    ended = backend.begin([OneRow((2,), 0, (1,), 0)], [sound])
    gpu.run_steps()
    known = backend.inputs.words
    assert (gpu.words[: known.size] == known).all()
    ended()
