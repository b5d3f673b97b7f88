"""How many blocks and threads a launch has, and how much of a row each block holds in its registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decodepool_kernels.cuda.products import SLICES

SLICE_STRIDE = 1024
"""Inputs after which the slices take their turns again."""

Grid = Callable[[int], tuple[int, int]]
"""From the rows of a step to the blocks in x and y."""


def whole_rows(rows: int) -> tuple[int, int]:
    """Return the grid of a block a row."""
    return (rows, 1)


def slices_of_rows(rows: int) -> tuple[int, int]:
    """Return the grid of a block a slice of each row."""
    return (rows, SLICES)


@dataclass(frozen=True)
class Pairs:
    """The grid of blocks of threads that each turn a pair of dims of one head, or of `each` heads."""

    heads: int
    head_dim: int
    threads: int

    def __call__(self, rows: int, each: int = 1) -> tuple[int, int]:
        """Return the grid of `each` heads a thread."""
        teams = -(-self.heads // each)
        return -(-teams * self.head_dim // (2 * self.threads)), rows


def held(width: int) -> dict[str, int]:
    """Return the define of kernels that hold a row of `width` floats in a block's registers."""
    return {"ITEMS": -(-width // SLICE_STRIDE)}


def slice_threads(width: int, most_warps: int = 8) -> int:
    """Return the threads of a block that holds one slice of such a row: a warp a group of 128, up to `most_warps`."""
    return 32 * min(most_warps, -(-width // SLICE_STRIDE))


def slice_held(width: int) -> dict[str, int]:
    """Return the define of kernels that hold one slice of a row in the registers of so many warps."""
    return {"ITEMS": -(-width // (SLICE_STRIDE * slice_threads(width) // 32))}


def elements(count: int, each: int) -> Grid:
    """Return the grid of blocks that have so many elements of a row `each`."""
    blocks = -(-count // each)
    return lambda rows: (blocks, rows)
