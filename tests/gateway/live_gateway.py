"""A gateway on a real socket in this process, in a thread with an event loop of its own: its limits can be lowered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from decodepool_gateway.discovery.listed import ListedWorker, ListedWorkers
from decodepool_gateway.gateway import Gateway
from decodepool_gateway.placements import QueueLimits
from decodepool_gateway.server import GatewayOptions, background, serving
from decodepool_sizing.api_keys import ApiKeys
from decodepool_web.sockets import listening_socket

from tests.gateway.processes import answers, until
from tests.serving.http_client import Client


@dataclass
class LiveGateway(Client):
    """A running gateway. `gateway` belongs to its loop's thread."""

    gateway: Gateway
    loop: asyncio.AbstractEventLoop


@contextmanager
def live_gateway(
    workers: Sequence[tuple[str, str]], limits: QueueLimits | None = None, *, ready: bool = True
) -> Iterator[LiveGateway]:
    """Run a gateway before workers, each a name and a URL; it is ready at first, where `ready` says that it will be."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="live-gateway")
    thread.start()
    listener = listening_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listed = ListedWorkers([ListedWorker(name, url) for name, url in workers])
    options = GatewayOptions("live", listed, ApiKeys(), limits or QueueLimits())
    started: asyncio.Future[Gateway] = asyncio.run_coroutine_threadsafe(_future(), loop).result(10)
    ended = asyncio.Event()

    async def live() -> None:
        gateway = Gateway(options.pool, options.keys, options.queue)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in background(gateway, options)]
            async with serving(gateway, listener):
                started.set_result(gateway)
                await ended.wait()
            for task in tasks:
                task.cancel()
        await gateway.upstream.close()

    living = asyncio.run_coroutine_threadsafe(live(), loop)
    running = LiveGateway(f"http://127.0.0.1:{port}", port, run_on(loop, _result(started)), loop)
    try:
        until(lambda: answers(running, "/readyz" if ready else "/healthz"), 10)
        yield running
    finally:
        loop.call_soon_threadsafe(ended.set)
        living.result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a loop's thread; return its result."""
    return asyncio.run_coroutine_threadsafe(work, loop).result(10)


async def _future() -> asyncio.Future[Gateway]:
    return asyncio.get_running_loop().create_future()


async def _result(future: asyncio.Future[Gateway]) -> Gateway:
    return await future
