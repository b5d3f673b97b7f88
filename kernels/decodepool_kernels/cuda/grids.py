"""How many blocks and threads a launch has, and how much of a row each block holds in its registers."""

from __future__ import annotations

from collections.abc import Callable

from decodepool_kernels.cuda.products import SLICES

SLICE_STRIDE = 1024
"""Inputs after which the slices take their turns again."""
MANY_ROWS = 128
"""Rows from which threads that turn a pair of dims do so in several heads: their blocks would take turns on the SMs."""

Grid = Callable[[int], tuple[int, int]]
"""From the rows of a step to the blocks in x and y."""


def whole_rows(rows: int) -> tuple[int, int]:
    """Return the grid of a block a row."""
    return (rows, 1)


def slices_of_rows(rows: int) -> tuple[int, int]:
    """Return the grid of a block a slice of each row."""
    return (rows, SLICES)


def heads_each(rows: int) -> int:
    """Return the heads in which a thread of `rope_append` turns its pair of f16 keys' or queries' dims."""
    return 4 if rows >= MANY_ROWS else 1


def pairs(heads: int, head_dim: int, threads: int) -> Grid:
    """Return the grid of blocks of threads that each turn a pair of dims in `heads_each` heads."""

    def grid(rows: int) -> tuple[int, int]:
        teams = -(-heads // heads_each(rows))
        return -(-teams * head_dim // (2 * threads)), rows

    return grid


def held(width: int) -> dict[str, int]:
    """Return the define of kernels that hold a row of `width` floats in a block's registers."""
    return {"ITEMS": -(-width // SLICE_STRIDE)}


def slice_threads(width: int) -> int:
    """Return the threads of a block that holds one slice of such a row: a warp a group of 128, up to 8."""
    return 32 * min(8, -(-width // SLICE_STRIDE))


def slice_held(width: int) -> dict[str, int]:
    """Return the define of kernels that hold one slice of a row in a block's registers."""
    return {"ITEMS": -(-width // (SLICE_STRIDE * slice_threads(width) // 32))}


def elements(count: int, each: int) -> Grid:
    """Return the grid of blocks that have so many elements of a row `each`."""
    blocks = -(-count // each)
    return lambda rows: (blocks, rows)
