"""How a quantised activation lies: planes of its values, scales of 8 slices, sums of halves of blocks."""

from __future__ import annotations

from decodepool_kernels.cuda.products import SLICES

PLANE_BYTES = 2
"""Of a value in one plane."""


def scales_at(inputs: int, columns: int, planes: int) -> int:
    """Return the byte at which the scales of `columns` rows of `inputs` values begin."""
    return inputs * columns * PLANE_BYTES * planes


def activation_bytes(inputs: int, columns: int, planes: int) -> int:
    """Return the bytes of an activation of `columns` rows of `inputs` values."""
    scales, sums = SLICES * columns * 4, inputs // 16 * columns * 4
    return scales_at(inputs, columns, planes) + scales + sums
