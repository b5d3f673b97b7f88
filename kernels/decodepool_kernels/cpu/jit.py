"""numba's decorators with honest types: a compiled function is called like the Python it was written as."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config
from numba.core import types as _types
from numba.extending import intrinsic as _intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

types: Any = _types
"""numba's types; calling one makes a signature, which its stubs do not know."""


def keep_code_in(folder: Path) -> None:
    """Have the code of entries that are defined from now on kept in a folder, or loaded from it."""
    config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]  # set by name at start-up


def compiled(function: Function) -> Function:
    """Compile a function when it is first called from compiled code.

    Division by zero is IEEE's and no exception, which would end a follower in the middle of a step.
    """
    return cast(Function, numba.njit(error_model="numpy")(function))


def entry(function: Function) -> Function:
    """Compile a function that Python calls: it runs without the GIL; its code is kept if there is a folder for it."""
    is_kept = bool(config.CACHE_DIR)  # type: ignore[attr-defined]
    return cast(Function, numba.njit(nogil=True, cache=is_kept, error_model="numpy")(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that writes its own LLVM code; it is called without the typing context."""
    return cast(Callable[..., Any], _intrinsic(function))
