"""Memory of the host that steps take by turns: one runs while the next one's inputs are written, so there are two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decodepool_kernels.cuda.device import Gpu, Mark
from decodepool_kernels.cuda.inputs import ANSWER_WORDS

STEPS_UNDER_WAY = 2
"""At most: one that runs, and one that waits for its end."""


@dataclass
class Turn:
    """What one step brings and what comes back, in pinned memory: words, and answers `[rows, ANSWER_WORDS]`, which are
    there at `end`.
    """

    words: NDArray[np.int32]
    answers: NDArray[np.int32]
    end: Mark
    is_taken: bool = False


class Turns:
    """Gives steps their turns, in order."""

    def __init__(self, gpu: Gpu, words: int, max_rows: int) -> None:
        made = [
            Turn(gpu.pinned(words), gpu.pinned(ANSWER_WORDS * max_rows).reshape(max_rows, ANSWER_WORDS), gpu.mark())
            for _ in range(STEPS_UNDER_WAY)
        ]
        self._turns: Sequence[Turn] = made
        self._at = 0

    def require_free(self) -> None:
        """RuntimeError while the last step of the next turn has not been waited for."""
        if self._turns[self._at].is_taken:
            raise RuntimeError(f"{STEPS_UNDER_WAY} steps are under way: one must be waited for before the next begins")

    def take(self) -> Turn:
        """Return the next turn, which must be free."""
        turn = self._turns[self._at]
        turn.is_taken, self._at = True, (self._at + 1) % len(self._turns)
        return turn
