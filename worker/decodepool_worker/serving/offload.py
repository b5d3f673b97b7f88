"""Work that would hold the event loop goes to threads; what is small stays, since a hop costs more than it.

Large work has a thread of its own: one at a time, so that its memory is bounded and nothing smaller waits behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from decodepool_sizing.api_errors import ApiError

from decodepool_worker.serving.heap import give_back_heap

P = ParamSpec("P")
R = TypeVar("R")

SMALL_CHARACTERS = 4096
"""Text or JSON up to this size is handled in well under a millisecond."""

LARGE_CHARACTERS = 1 << 16
"""What is larger than this may take seconds, and hundreds of bytes of memory for each of its own."""

THREADS = 4


class Offload:
    """A small pool for tokenizing, rendering and JSON, and one thread for the large ones of these."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decodepool-offload")
        self._lane = ThreadPoolExecutor(1, thread_name_prefix="decodepool-large")
        self._waiting: set[asyncio.Timeout] = set()
        self._is_closed = False

    async def run(self, size: int, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return `call(...)`, from this thread if `size` characters are few, from one of the others otherwise.

        Raises `ApiError` 503 for what a thread has yet to do when this is closed.
        """
        if size <= SMALL_CHARACTERS:
            return call(*args, **kwargs)
        if size <= LARGE_CHARACTERS:
            return await self._done(self._pool, lambda: call(*args, **kwargs))
        return await self._done(self._lane, lambda: _large(call, *args, **kwargs))

    def close(self) -> None:
        """Give up all work; what a thread is at is left to the end of the process."""
        self._is_closed = True
        for deadline in self._waiting:
            deadline.reschedule(0)
        for pool in (self._pool, self._lane):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _done(self, pool: ThreadPoolExecutor, work: Callable[[], R]) -> R:
        ending = ApiError("draining", "the worker is ending: it waits for no thread")
        if self._is_closed:
            raise ending
        try:
            async with self._given_up_at_the_end():
                return await asyncio.get_running_loop().run_in_executor(pool, work)
        except TimeoutError:
            if not self._is_closed:
                raise
            raise ending from None

    @asynccontextmanager
    async def _given_up_at_the_end(self) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as deadline:
            self._waiting.add(deadline)
            try:
                yield
            finally:
                self._waiting.discard(deadline)


def _large(call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return call(*args, **kwargs)
    finally:
        give_back_heap()
