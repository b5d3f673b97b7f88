"""numba's decorators with honest types: a compiled function is called like the Python it was written as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import types as _types
from numba.extending import intrinsic as _intrinsic

from decodepool_kernels.cpu.cache import prepare_cache

IS_CACHED = prepare_cache()
"""Asked before anything is compiled: numba looks for its folder when it meets a function."""

Function = TypeVar("Function", bound=Callable[..., Any])

types: Any = _types
"""numba's types; calling one makes a signature, which its stubs do not know."""


def compiled(function: Function) -> Function:
    """Compile a function when it is first called from compiled code.

    Division by zero is IEEE's and no exception, which would end a follower in the middle of a step.
    """
    return cast(Function, numba.njit(error_model="numpy")(function))


def entry(function: Function) -> Function:
    """Compile a function that Python calls: it runs without the GIL, and its code is kept on disk where that can be."""
    return cast(Function, numba.njit(nogil=True, cache=IS_CACHED, error_model="numpy")(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that writes its own LLVM code; it is called without the typing context."""
    return _intrinsic(function)
