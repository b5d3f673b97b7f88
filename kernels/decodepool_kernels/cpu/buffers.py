"""Aligned buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHE_LINE_BYTES = 64


def aligned_bytes(count: int) -> NDArray[np.uint8]:
    """Return `count` zeroed bytes that start on a cache line; they become resident when first written."""
    raw = np.zeros(count + CACHE_LINE_BYTES, np.uint8)
    start = -address(raw) % CACHE_LINE_BYTES
    return raw[start : start + count]


def address(array: NDArray[Any]) -> int:
    """Return the address of an array's first element."""
    return int(array.ctypes.data)
