"""Which pool to look at next. A key is handled by one task at a time; whatever comes meanwhile makes it due once more.

Rules: a key is due once, at the earliest time asked for. A failing key waits twice as long each time, and no event
hurries it below its floor; only `hurry` (its owner changed it) does.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from decodepool_operator.names import PoolKey

SETTLE_SECONDS = 0.2
"""Between two looks at one pool: a burst of events is one look."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 300.0
HIGHEST_FLOOR_SECONDS = 30.0
"""However often a pool failed, an event about it waits no longer than this."""


class WorkQueue:
    """Keys with times at which they are due. For one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[PoolKey, float] = {}
        self._heap: list[tuple[float, PoolKey]] = []
        self._running: dict[PoolKey, float] = {}
        self._ended: dict[PoolKey, float] = {}
        self._failures: dict[PoolKey, int] = {}
        self._settle_seconds: dict[PoolKey, float] = {}
        self._news: set[PoolKey] = set()
        self._forgotten: set[PoolKey] = set()
        self._changed = asyncio.Event()

    def add(self, key: PoolKey, delay_seconds: float = 0.0) -> None:
        """Make a key due, since something happened: no earlier than its floor, no later than it is due anyway."""
        self._news.add(key)
        self.again(key, delay_seconds)

    def again(self, key: PoolKey, delay_seconds: float) -> None:
        """Make a key due as `add` does, though nothing happened."""
        self._schedule(key, max(self._clock() + delay_seconds, self._floor(key)))

    def hurry(self, key: PoolKey) -> None:
        """Make a key due now, and forget that it failed."""
        self._news.add(key)
        self._failures.pop(key, None)
        self._ended.pop(key, None)
        self._schedule(key, self._clock())

    def had_news(self, key: PoolKey) -> bool:
        """Whether anything happened since this was asked last."""
        had = key in self._news
        self._news.discard(key)
        return had

    def retry(self, key: PoolKey) -> float:
        """Make a failed key due after a wait that doubles; return the wait in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay: float = min(FIRST_RETRY_SECONDS * 2.0**failures, LONGEST_RETRY_SECONDS)
        self._schedule(key, self._clock() + delay)
        return delay

    def succeeded(self, key: PoolKey) -> None:
        """Forget that a key failed, and that it had to settle."""
        self._failures.pop(key, None)
        self._settle_seconds.pop(key, None)

    def settle(self, key: PoolKey, seconds: float) -> None:
        """Have events about a key wait for this long after its last look, until it is forgotten by `succeeded`."""
        self._settle_seconds[key] = seconds

    def forget(self, key: PoolKey) -> None:
        """Forget all about a key that is gone, and when the look at it ended, where one is under way."""
        self._forgotten |= {key} & self._running.keys()
        for memory in (self._failures, self._settle_seconds, self._ended, self._due):
            memory.pop(key, None)
        self._news.discard(key)

    async def get(self) -> PoolKey:
        """Wait for a key that is due and not being handled; it is the caller's until `done`."""
        while True:
            self._changed.clear()
            wait = self._next_wait()
            if wait is None or wait > 0:
                await self._wait(wait)
                continue
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            self._running[key] = self._clock()
            return key

    def done(self, key: PoolKey) -> None:
        """Give a key back. If it became due meanwhile, it is handed out again."""
        del self._running[key]
        if key in self._forgotten:
            self._forgotten.discard(key)
        else:
            self._ended[key] = self._clock()
        if key in self._due:
            self._due[key] = max(self._due[key], self._floor(key))
            heapq.heappush(self._heap, (self._due[key], key))
        self._changed.set()

    @property
    def depth(self) -> int:
        """How many keys are due and wait."""
        now = self._clock()
        return sum(when <= now for when in self._due.values())

    @property
    def longest_run_seconds(self) -> float:
        """How long the oldest look that has not ended lasts."""
        return self._clock() - min(self._running.values(), default=self._clock())

    def _schedule(self, key: PoolKey, when: float) -> None:
        if key in self._due and self._due[key] <= when:
            return
        self._due[key] = when
        if key not in self._running:
            heapq.heappush(self._heap, (when, key))
            self._changed.set()

    def _floor(self, key: PoolKey) -> float:
        ended = self._ended.get(key)
        if ended is None:
            return 0.0
        failing = min(SETTLE_SECONDS * 4.0 ** self._failures.get(key, 0), HIGHEST_FLOOR_SECONDS)
        return ended + max(failing, self._settle_seconds.get(key, 0.0))

    def _next_wait(self) -> float | None:
        """Return the seconds until the first key is due, None without one. Drops what was rescheduled."""
        while self._heap:
            when, key = self._heap[0]
            if self._due.get(key) == when and key not in self._running:
                return when - self._clock()
            heapq.heappop(self._heap)
        return None

    async def _wait(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return
