"""How the rows of long runs are cut for attention_wide: units of up to 128 (row, query head) pairs, each against every
block that they see, and how many thread blocks share one.

Thread blocks that share a unit wait for each other's turn, so they must all run at once: units are shared only while
all of them together are no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence

from decodepool_kernels.cuda.page_tables import GROUP_PAGES, PAGE_TOKENS
from decodepool_kernels.runs import RowRun

GROUP_TOKENS = GROUP_PAGES * PAGE_TOKENS
PLACES = 128
"""Pairs of a row and a query head that a thread block takes."""

WideUnit = tuple[int, int, int, int, int, int, int, int]
"""Row, rows, blocks, which of the thread blocks that share it, how many share it, number of the tile; padding."""


def wide_units(runs: Sequence[tuple[int, RowRun]], group_heads: int, at_once: int) -> list[WideUnit]:
    """Return the units of runs (first row in the step, run), the longest first. `at_once` units of every kv head run
    side by side.
    """
    if not runs:
        return []
    tile_rows = PLACES // group_heads
    tiles = [
        (first + begin, min(tile_rows, len(run.tokens) - begin), run.position + begin)
        for first, run in runs
        for begin in range(0, len(run.tokens), tile_rows)
    ]
    tiles.sort(key=_last_position, reverse=True)
    shares = _shares([_last_position(tile) // GROUP_TOKENS + 1 for tile in tiles], at_once)
    return [
        (row, rows, (position + rows - 1) // PAGE_TOKENS + 1, split, shares[tile], tile, 0, 0)
        for tile, (row, rows, position) in enumerate(tiles)
        for split in range(shares[tile])
    ]


def _last_position(tile: tuple[int, int, int]) -> int:
    return tile[2] + tile[1] - 1


def _shares(groups: Sequence[int], at_once: int) -> list[int]:
    """Return how many thread blocks share each tile: one more for whichever takes longest, while all run at once."""
    shares = [1] * len(groups)
    for _ in range(at_once - len(groups)):
        longest = max(range(len(groups)), key=lambda tile: -(-groups[tile] // shares[tile]))
        if shares[longest] == groups[longest]:
            break
        shares[longest] += 1
    return shares
