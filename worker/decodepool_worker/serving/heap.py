"""Freed memory, given back to the system: the C library keeps it otherwise, and a large text leaves much of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

Trim = Callable[[int], int]


def _trimmer() -> Trim | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc
        return None


_TRIM = _trimmer()


def give_back_heap() -> None:
    """Return what is free of the heap to the system, where the C library can."""
    if _TRIM is not None:
        _TRIM(0)
