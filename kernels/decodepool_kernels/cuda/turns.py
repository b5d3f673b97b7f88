"""Memory of the host that steps take by turns: one runs while the next one's inputs are written, so there are two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

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
        self._next = cycle(made)

    def take(self) -> Turn:
        """Return the next turn. RuntimeError while its last step has not been waited for."""
        turn = next(self._next)
        if turn.is_taken:
            raise RuntimeError(f"{STEPS_UNDER_WAY} steps are under way: one must be waited for before the next begins")
        turn.is_taken = True
        return turn
