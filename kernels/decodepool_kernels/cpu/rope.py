"""Rotary positions. Angles are position * frequency in f64, their cosine and sine times the magnitude rounded once to
f32; a pair rotates as a' = fma(a, c, -(b s)), b' = fma(a, s, b c).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from decodepool_kernels.cpu.jit import compiled
from decodepool_kernels.cpu.scalar import fma
from decodepool_kernels.cpu.views import float32_at, float64_at


@compiled
def rope_table(
    frequencies: int, half: int, magnitude: float, positions: Any, table: int, first: int, last: int
) -> None:
    """Write cosine and sine of every row and pair: table row = `half` cosines, then `half` sines."""
    frequency = float64_at(frequencies, half)
    for row in range(first, last):
        out = float32_at(table + row * half * 8, 2 * half)
        for i in range(half):
            angle = positions[row] * frequency[i]
            out[i] = np.float32(math.cos(angle) * magnitude)
            out[half + i] = np.float32(math.sin(angle) * magnitude)


@compiled
def rope(
    x: int,
    stride: int,
    heads: int,
    width: int,
    half: int,
    interleaved: int,
    table: int,
    first: int,
    last: int,
) -> None:
    """Rotate in place the first 2 * half elements of each head: pairs (2i, 2i + 1), or (i, i + half)."""
    for item in range(first, last):
        row, head = item // heads, item % heads
        values = float32_at(x + row * stride + head * width * 4, width)
        angles = float32_at(table + row * half * 8, 2 * half)
        for i in range(half):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
            cosine, sine = angles[i], angles[half + i]
            left, right = values[a], values[b]
            values[a] = fma(left, cosine, -(right * sine))
            values[b] = fma(left, sine, right * cosine)
