"""What every handler shares: the pool, who gets places in it, and the end of it all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp
from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_sizing.api_keys import ApiKeys

from decodepool_gateway.bodies import Bodies
from decodepool_gateway.headers import to_worker
from decodepool_gateway.live_pool import LivePool
from decodepool_gateway.metrics import Metrics
from decodepool_gateway.placements import Placements, QueueLimits
from decodepool_gateway.pool import Pool
from decodepool_gateway.upstream import Upstream
from decodepool_gateway.workers import Worker


class Gateway:
    """One gateway process as its handlers see it. Make it on the event loop."""

    def __init__(self, name: str, keys: ApiKeys, limits: QueueLimits) -> None:
        self.name = name
        self.keys = keys
        self.pool = Pool()
        self.placements = Placements(self.pool, limits, asyncio.get_running_loop().time)
        self.metrics = Metrics()
        self.metrics.watch(self.pool, self.placements)
        self.upstream = Upstream(keys)
        self.live = LivePool(name, self.pool, self.placements, self.upstream)
        self.bodies = Bodies()
        self.draining = False
        self.ending = False
        self._deadlines: set[asyncio.Timeout] = set()

    @property
    def is_ready(self) -> bool:
        """Whether to send clients here: once a worker took sessions, and until this gateway drains.

        While no worker does any more, they had better be told so than find nobody behind the pool's address.
        """
        return not self.draining and self.pool.has_admitted

    @asynccontextmanager
    async def until_the_end(self) -> AsyncIterator[asyncio.Timeout]:
        """Run a block that the process's end may end; raise `ApiError` `draining` there when it does.

        Whoever reschedules the deadline that this yields must heed `ending` first, and gets a `TimeoutError` when it
        passes.
        """
        deadline = asyncio.timeout(0 if self.ending else None)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                yield deadline
        except TimeoutError:
            if self.ending:
                raise ApiError("draining", "the gateway is ending") from None
            raise
        finally:
            self._deadlines.discard(deadline)

    @asynccontextmanager
    async def body_of(self, request: web.Request) -> AsyncIterator[bytes | None]:
        """Read a request's body and hold it for the time of the block; raises what `Bodies.body` raises."""
        async with AsyncExitStack() as held:
            async with self.until_the_end():
                body = await held.enter_async_context(self.bodies.body(request))
            yield body

    @asynccontextmanager
    async def passed_on(
        self, request: web.Request, worker: Worker, body: bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Pass a request on as it came and yield the head of its answer; raises `WorkerFault`."""
        began = time.perf_counter()
        path = request.rel_url.raw_path_qs
        async with AsyncExitStack() as held:
            async with self.until_the_end():
                sent = self.upstream.opened(worker, request.method, path, to_worker(request.headers), body)
                answer = await held.enter_async_context(sent)
            self.metrics.answer_seconds.observe(time.perf_counter() - began)
            yield answer

    def end(self) -> None:
        """End everything that is under way: answers become refusals, streams get a last event."""
        self.ending = True
        for deadline in self._deadlines:
            with suppress(RuntimeError):  # it has passed already
                deadline.reschedule(0)


GATEWAY = web.AppKey("gateway", Gateway)


def gateway_of(request: web.BaseRequest) -> Gateway:
    """Return the gateway that a request came to."""
    assert isinstance(request, web.Request)
    return request.app[GATEWAY]
