"""A worker on a real socket, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from decodepool_sizing.api_keys import ApiKeys
from decodepool_web.sockets import listening_socket, url_of
from decodepool_worker.serving.application import build_application
from decodepool_worker.serving.connections import listening
from decodepool_worker.serving.service import Served, Service

from tests.serving.byte_model import ByteEngine, Gate, served_bytes
from tests.serving.http_client import Client


@dataclass
class Server(Client):
    """A running worker, whatever it serves."""

    service: Service
    loop: asyncio.AbstractEventLoop


@dataclass
class Live(Server):
    """A worker that serves the byte model. `gate` paces its engine."""

    engine: ByteEngine
    gate: Gate


@contextmanager
def live_worker(
    *,
    sessions: int = 4,
    context_tokens: int = 512,
    keys: tuple[bytes, ...] = (),
    load: bool = True,
    step_seconds: float = 0.0,
    tag: str | None = None,
    local_clients: bool = False,
) -> Iterator[Live]:
    """Run a worker that serves the byte model; with `load` False it stays at loading."""
    gate = Gate(step_seconds)
    engine = ByteEngine(page_count=2 * sessions * context_tokens // 64, slot_count=sessions, pace=gate)

    def serve(service: Service) -> Served:
        return served_bytes(service, engine, context_tokens=context_tokens, sessions=sessions)

    with live_server(serve if load else None, keys, tag, local_clients=local_clients) as server:
        try:
            yield Live(server.url, server.port, server.service, server.loop, engine, gate)
        finally:
            gate.release()


@contextmanager
def live_server(
    serve: Callable[[Service], Served] | None,
    keys: tuple[bytes, ...] = (),
    tag: str | None = None,
    *,
    local_clients: bool = False,
) -> Iterator[Server]:
    """Run a worker that serves what `serve` makes on its event loop; nothing yet, where that is None."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="live-server")
    thread.start()
    listener = listening_socket("127.0.0.1", 0)
    made = Service(ApiKeys(keys), tag=tag, local_clients=local_clients)
    service, stack = asyncio.run_coroutine_threadsafe(_start(listener, serve, made), loop).result(60)
    try:
        yield Server(url_of(listener), listener.getsockname()[1], service, loop)
    finally:
        asyncio.run_coroutine_threadsafe(_stop(service, stack), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _start(
    listener: socket.socket, serve: Callable[[Service], Served] | None, service: Service
) -> tuple[Service, AsyncExitStack]:
    stack = AsyncExitStack()
    await stack.enter_async_context(listening(build_application(service), service, listener))
    if serve is not None:
        served = serve(service)
        served.worker.start()
        service.open(served)
    return service, stack


async def _stop(service: Service, stack: AsyncExitStack) -> None:
    served = service.loaded()
    if served is not None:
        await served.worker.stop()
        served.close()
    await stack.aclose()
