"""Memory of the host that steps take by turns: one runs while the next one's inputs are written, so there are two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decodepool_kernels.cuda.device import Gpu, Mark
from decodepool_kernels.cuda.inputs import ANSWER_WORDS, MAX_ROWS

STEPS_UNDER_WAY = 2
"""At most: one that runs, and one that waits for its end."""


@dataclass
class Turn:
    """What one step brings and what comes back, in pinned memory: words, and answers `[MAX_ROWS, ANSWER_WORDS]`, which
    the kernels have written there at `end`.
    """

    number: int
    words: NDArray[np.int32]
    answers: NDArray[np.int32]
    end: Mark
    is_taken: bool = False


class Turns:
    """Gives steps their turns, in order. `answers` is where kernels find the answers of all."""

    def __init__(self, gpu: Gpu, words: int) -> None:
        answers = gpu.pinned(STEPS_UNDER_WAY * MAX_ROWS * ANSWER_WORDS)
        each = answers.reshape(STEPS_UNDER_WAY, MAX_ROWS, ANSWER_WORDS)
        self._turns: Sequence[Turn] = [
            Turn(number, gpu.pinned(words), each[number], gpu.mark()) for number in range(STEPS_UNDER_WAY)
        ]
        self._at = 0
        self.answers = answers.ctypes.data

    def require_free(self) -> None:
        """RuntimeError while the last step of the next turn has not been waited for."""
        if self._turns[self._at].is_taken:
            raise RuntimeError(f"{STEPS_UNDER_WAY} steps are under way: one must be waited for before the next begins")

    def take(self) -> Turn:
        """Return the next turn, which must be free."""
        turn = self._turns[self._at]
        turn.is_taken, self._at = True, (self._at + 1) % len(self._turns)
        return turn
