"""What the gateway asks its workers: for their capacity, once a second; and the rest, when it is asked itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from decodepool_gateway.pool import Pool
from decodepool_gateway.upstream import Upstream, WorkerFault
from decodepool_gateway.workers import Worker, WorkerAddress, told_unmarked

logger = logging.getLogger("decodepool.gateway")

POLL_SECONDS = 1.0


class Poller:
    """Keeps what is known of every worker's places fresh. One that does not answer delays no other."""

    def __init__(self, pool: Pool, upstream: Upstream) -> None:
        self._pool = pool
        self._upstream = upstream
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()

    def discovered(self, addresses: Iterable[WorkerAddress]) -> None:
        """Take what discovery knows now, and ask at once whoever is new."""
        self._pool.discovered(addresses)
        self._woken.set()

    async def run(self) -> None:
        """Ask, until cancelled."""
        try:
            while True:
                for worker in self._pool.workers:
                    self._ask(worker)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), POLL_SECONDS)
                self._woken.clear()
        finally:
            for task in self._asking.values():
                task.cancel()

    def _ask(self, worker: Worker) -> None:
        tag = worker.address.tag
        if tag not in self._asking:
            self._asking[tag] = task = asyncio.create_task(self._refresh(worker))
            task.add_done_callback(lambda _: self._asking.pop(tag))

    async def _refresh(self, worker: Worker) -> None:
        asked_at = asyncio.get_running_loop().time()
        try:
            report = await self._upstream.ask(worker, "/v1/capacity")
        except WorkerFault:
            report = None
        if report is None:
            worker.missed()
        else:
            marked = worker.marks_sessions
            worker.reported(report, asked_at)
            if marked and not worker.marks_sessions:
                logger.warning("%s", told_unmarked(worker.address))
        self._pool.changed()


async def answers(upstream: Upstream, workers: Iterable[Worker], path: str) -> list[tuple[Worker, Any]]:
    """Ask every worker the same; None stands for each that does not answer."""

    async def answer(worker: Worker) -> tuple[Worker, Any]:
        try:
            return worker, await upstream.ask(worker, path)
        except WorkerFault:
            return worker, None

    return await asyncio.gather(*[answer(worker) for worker in workers])
