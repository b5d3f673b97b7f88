"""Memory of the host that steps take by turns: one runs while the next one's inputs are written, so there are two. The
kernels find there what a step brings (sources/bring.cu), and write there what it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decodepool_kernels.cuda.device import Gpu, Mark
from decodepool_kernels.cuda.inputs import ANSWER_WORDS, BROUGHT_WORDS, MAX_ROWS, NUMBER

STEPS_UNDER_WAY = 2
"""At most: one that runs, and one that waits for its end."""
MOST_NUMBER = 0x7FFF_FFFF
"""Of a step: then they begin at 0 again."""


@dataclass
class Turn:
    """What one step brings and what comes back, in pinned memory: words, and answers `[MAX_ROWS, ANSWER_WORDS]`, which
    are there at `end`.
    """

    words: NDArray[np.int32]
    answers: NDArray[np.int32]
    end: Mark
    is_taken: bool = False

    def write(self, words: NDArray[np.int32], parts: Sequence[range]) -> None:
        """Take some parts of a step's words."""
        for part in parts:
            self.words[part.start : part.stop] = words[part.start : part.stop]


class Turns:
    """Gives steps their turns, in order, and numbers, from 1 on. `words` and `answers` are where the kernels find those
    of all, the words of each turn `fours` times four int32 apart.
    """

    def __init__(self, gpu: Gpu, words: int) -> None:
        self.fours, self._number = words // BROUGHT_WORDS, 0
        brought = gpu.pinned(STEPS_UNDER_WAY * words).reshape(STEPS_UNDER_WAY, words)
        brought[:, NUMBER] = 0
        answers = gpu.pinned(STEPS_UNDER_WAY * MAX_ROWS * ANSWER_WORDS)
        each = answers.reshape(STEPS_UNDER_WAY, MAX_ROWS, ANSWER_WORDS)
        self._turns = [Turn(*of, gpu.mark()) for of in zip(brought, each, strict=True)]
        self.words, self.answers = brought.ctypes.data, answers.ctypes.data

    def next_number(self) -> int:
        """Return the next step's number. RuntimeError while the last step of its turn has not been waited for."""
        number = (self._number + 1) & MOST_NUMBER
        if self._turns[number % STEPS_UNDER_WAY].is_taken:
            raise RuntimeError(f"{STEPS_UNDER_WAY} steps are under way: one must be waited for before the next begins")
        return number

    def take(self, number: int) -> Turn:
        """Return the turn of the next step, whose number this is: the device waits for it from now on."""
        self._number = number
        turn = self._turns[number % STEPS_UNDER_WAY]
        turn.is_taken = True
        return turn
