"""Work that would hold the event loop goes to a few threads; what is small stays, since a hop costs more than it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SMALL_CHARACTERS = 4096
"""Text or JSON up to this size is handled in well under a millisecond."""

THREADS = 4
"""Enough that one hostile text of megabytes does not make the next short prompt wait."""


class Offload:
    """A small pool for tokenizing, rendering and large JSON."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decodepool-offload")

    async def run(self, size: int, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return `call(...)`, from this thread if `size` characters are few, from the pool otherwise."""
        if size <= SMALL_CHARACTERS:
            return call(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*args, **kwargs))

    def close(self) -> None:
        """Drop what waits; what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
