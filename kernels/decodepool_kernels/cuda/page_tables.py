"""The page tables that a step brings, one a run. The device keeps those of the step before: a session's table changes
once in 64 tokens, so only rows that differ are written and copied again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from decodepool_sizing import kv
from numpy.typing import NDArray

from decodepool_kernels.runs import RowRun

PAGE_TOKENS = kv.PAGE_TOKENS
GROUP_PAGES = 8
"""Pages, or blocks of attention, whose states are folded before the row's total is."""


def blocks_of(position: int) -> int:
    """Return the blocks that a row at a position sees."""
    return position // PAGE_TOKENS + 1


class PageTables:
    """Fills `words`, `[tables, width]`, with the physical pages of each run; `page_count` of them there are."""

    def __init__(self, words: NDArray[np.int32], page_count: int) -> None:
        self._words, self._page_count = words, page_count
        self._known: list[Sequence[int]] = [()] * len(words)

    def place(self, runs: Sequence[RowRun]) -> range:
        """Write the tables of runs that hold tokens; return the rows that a copy must bring. ValueError for pages that
        are not there, before anything is written.
        """
        changed = []
        for index, run in enumerate(runs):
            needed = blocks_of(run.position + len(run.tokens) - 1)
            pages = run.pages[:needed]
            if len(pages) != needed or pages != self._known[index]:
                self._check(pages, needed)
                changed.append((index, pages))
        for index, pages in changed:
            self._words[index, : len(pages)] = pages
            self._known[index] = pages
        return range(changed[0][0], changed[-1][0] + 1) if changed else range(0)

    def _check(self, pages: Sequence[int], needed: int) -> None:
        width = self._words.shape[1]
        if not needed == len(pages) <= width or min(pages) < 0 or max(pages) >= self._page_count:
            raise ValueError(f"{needed} pages are needed of {self._page_count}, given {list(pages)[:8]}")
