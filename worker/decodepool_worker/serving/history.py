"""The last two minutes, one point a second: what the live page's lines are drawn from."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from decodepool_worker.sessions.stats import Stats, Totals

PERIOD_SECONDS = 1.0
POINTS = 120


@dataclass(frozen=True)
class Point:
    """One second. `step_ms` and `rows` are those of its mean step; None without steps."""

    tokens_per_second: float
    step_ms: float | None
    rows: float | None


class History:
    """Points taken from the sessions' counters."""

    def __init__(
        self,
        read_stats: Callable[[], Stats | None],
        read_step_seconds: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS)
        self._read_stats = read_stats
        self._read_step_seconds = read_step_seconds
        self._clock = clock
        self._before: _Sample | None = None

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(PERIOD_SECONDS)

    def sample(self) -> None:
        """Take a point from what changed since the last."""
        stats = self._read_stats()
        if stats is None:
            return
        now = _Sample(self._clock(), stats.totals, self._read_step_seconds())
        if self._before is not None:
            self.points.append(_between(self._before, now))
        self._before = now


@dataclass(frozen=True)
class _Sample:
    """The counters at one moment."""

    at: float
    totals: Totals
    step_seconds: float


def _between(old: _Sample, new: _Sample) -> Point:
    seconds = max(new.at - old.at, 1e-9)
    steps = new.totals.steps - old.totals.steps
    drawn = new.totals.decoded_tokens - old.totals.decoded_tokens
    rows = drawn + new.totals.prefilled_tokens - old.totals.prefilled_tokens
    if not steps:
        return Point(drawn / seconds, None, None)
    return Point(drawn / seconds, 1000 * (new.step_seconds - old.step_seconds) / steps, rows / steps)
