"""Rows picked out of a tensor: those whose logits are wanted."""

from __future__ import annotations

from typing import Any

from decodepool_kernels.cpu.jit import compiled
from decodepool_kernels.cpu.views import float32_at


@compiled
def gather(x: int, stride: int, out: int, width: int, picked: Any, first: int, last: int) -> None:
    """Copy row `picked[r]` of x to row r of out."""
    for row in range(first, last):
        float32_at(out + row * stride, width)[:] = float32_at(x + picked[row] * stride, width)
