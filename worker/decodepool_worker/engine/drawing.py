"""The draws of one step, shared among threads where they are many and long: a draw is a pure function of its own row,
so who draws it changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from decodepool_worker.engine.rows import Draw, Outcome
from decodepool_worker.engine.sampling import draw_token

Job = tuple[NDArray[np.float32], Draw]
"""A row of logits, and what is to be drawn from it."""
DrawToken = Callable[[NDArray[np.float32], Draw], Outcome]


class Drawers:
    """Threads that draw. NumPy lets go of the interpreter while it sums a row, which is most of a long draw."""

    def __init__(self, threads: int, draw: DrawToken = draw_token) -> None:
        self._threads, self._draw = threads, draw
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decodepool-draw")

    def draw(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Draw every job's token, in their order."""
        shares = min(self._threads, sum(sums_whole_row(draw) for _, draw in jobs))
        if shares < 2:
            return self._drawn(jobs)
        others = [self._pool.submit(self._drawn, jobs[share::shares]) for share in range(1, shares)]
        outcomes: list[Outcome] = [None] * len(jobs)
        outcomes[::shares] = self._drawn(jobs[::shares])
        for share, other in enumerate(others, start=1):
            outcomes[share::shares] = other.result()
        return outcomes

    def _drawn(self, jobs: Sequence[Job]) -> list[Outcome]:
        return [self._draw(logits, draw) for logits, draw in jobs]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def sums_whole_row(draw: Draw) -> bool:
    """Tell whether a draw sums as many weights as there are tokens: other draws take less than waking a thread."""
    return draw.top_logprobs is not None or (draw.sampling.temperature > 0 and draw.sampling.top_k == 0)
