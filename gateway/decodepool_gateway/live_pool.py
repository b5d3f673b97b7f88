"""What the live page is told: every worker's own live answer, side by side.

Workers are asked only while somebody looks, and once a second however many look.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from decodepool_gateway.placements import Placements
from decodepool_gateway.polling import answers
from decodepool_gateway.pool import Pool
from decodepool_gateway.upstream import Upstream
from decodepool_gateway.workers import Worker

PERIOD_SECONDS = 1.0
POINTS = 120
"""As many as the workers keep: two minutes of the page's lines."""

FRESH_SECONDS = 0.9
SHOWN_SESSIONS = 500
"""Of each worker; a page of more rows is read by nobody."""

OF_A_WORKER = ("model", "architecture", "context_tokens", "system_fingerprint", "memory")


class LivePool:
    """The present picture of the pool."""

    def __init__(self, name: str, pool: Pool, placements: Placements, upstream: Upstream) -> None:
        self._name = name
        self._pool = pool
        self._placements = placements
        self._upstream = upstream
        self._looking = asyncio.Lock()
        self._workers: list[dict[str, Any]] = []
        self._looked_at = float("-inf")
        self._points: deque[dict[str, int]] = deque(maxlen=POINTS)

    async def run(self) -> None:
        """Note once a second how many sessions there are and how many wait, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            active = sum(worker.capacity - worker.free for worker in self._pool.workers)
            self._points.append({"sessions": active, "queued": self._placements.queued})

    async def told(self) -> dict[str, Any]:
        """Return the pool's name, queue and workers, at most `FRESH_SECONDS` old."""
        clock = asyncio.get_running_loop().time
        async with self._looking:
            if clock() - self._looked_at > FRESH_SECONDS:
                heard = await answers(self._upstream, self._pool.workers, "/v1/live")
                self._workers = [_told(worker, answer) for worker, answer in heard]
                self._looked_at = clock()
        return {
            "pool": self._name,
            "queued": self._placements.queued,
            "workers": self._workers,
            "history": list(self._points),
        }


def _told(worker: Worker, answer: dict[str, Any] | None) -> dict[str, Any]:
    told = {"name": worker.address.name, "state": "unreachable" if answer is None else worker.state}
    if answer is None or "sessions" not in answer:
        return told
    sessions, history = answer["sessions"], answer["history"]
    shown: Sequence[Any] = sessions["list"][:SHOWN_SESSIONS]
    return {
        **told,
        **{name: answer[name] for name in OF_A_WORKER},
        "sessions": {**sessions, "active": len(sessions["list"]), "list": shown},
        "tokens_per_second": [round(point["tokens_per_second"], 1) for point in history],
        "step_ms": history[-1]["step_ms"] if history else None,
        "rows": history[-1]["rows"] if history else None,
    }
