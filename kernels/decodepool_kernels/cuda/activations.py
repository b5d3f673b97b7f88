"""How a quantised activation lies: planes of its values, scales of 8 slices, sums of halves of blocks."""

from __future__ import annotations

from decodepool_sizing.layouts import BLOCK_INPUTS, GROUP_BLOCKS

from decodepool_kernels.cuda.packing import GROUP_SUM_BYTES
from decodepool_kernels.cuda.products import SLICES

PLANE_BYTES = 2
"""Of a value in one plane."""


def scales_at(inputs: int, columns: int, planes: int) -> int:
    """Return the byte at which the scales of `columns` rows of `inputs` values begin."""
    return inputs * columns * PLANE_BYTES * planes


def activation_bytes(inputs: int, columns: int, planes: int) -> int:
    """Return the bytes of an activation of `columns` rows of `inputs` values."""
    groups = -(-inputs // (GROUP_BLOCKS * BLOCK_INPUTS))
    scales, sums = SLICES * columns * 4, groups * columns * GROUP_SUM_BYTES
    return scales_at(inputs, columns, planes) + scales + sums
