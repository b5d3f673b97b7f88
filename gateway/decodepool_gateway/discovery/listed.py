"""Workers that were named at the start; their readiness probes say which of them take sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from decodepool_gateway.discovery import Tell
from decodepool_gateway.workers import WorkerAddress

PROBE_SECONDS = 0.5
PROBE_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True)
class ListedWorker:
    """A worker that was started with `--worker-tag-of NAME`, and where it is reached."""

    name: str
    url: str


class ListedWorkers:
    """The same workers for good, ready or not."""

    def __init__(self, workers: Sequence[ListedWorker]) -> None:
        self._workers = workers

    async def run(self, tell: Tell) -> None:
        """Probe every worker twice a second, and tell when an answer differs from the last."""
        told: list[WorkerAddress] | None = None
        timeout = aiohttp.ClientTimeout(PROBE_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                found = await asyncio.gather(*[_probed(http, each) for each in self._workers])
                if found != told:
                    tell(found)
                told = found
                await asyncio.sleep(PROBE_SECONDS)


async def _probed(http: aiohttp.ClientSession, worker: ListedWorker) -> WorkerAddress:
    code = None
    try:
        async with http.get(worker.url + "/readyz") as answer:
            ready = answer.status == 200
            if not ready:
                code = (await answer.json())["error"]["code"]
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
        ready = False
    return WorkerAddress(worker.name, worker.name, worker.url, ready=ready, draining=code == "draining")
