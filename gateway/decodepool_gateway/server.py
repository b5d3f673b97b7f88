"""The life of a gateway process: listen, pass on, drain, end.

The first SIGTERM or SIGINT drains: readiness goes, nobody connects any more, idle connections close, and what is under
way goes on until it ends or the deadline passes; then streams get a last event. The second signal ends at once. Either
way the process ends with 0.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from decodepool_sizing.api_keys import ApiKeys
from decodepool_web.connections import LAST_WORDS_SECONDS, connection_limit, started
from decodepool_web.keys import follow
from decodepool_web.server_identity import IDENTITY
from decodepool_web.signals import Signals

from decodepool_gateway.application import build_application
from decodepool_gateway.connections import DESCRIPTORS_EACH, MOST_CONNECTIONS, ClientConnections
from decodepool_gateway.discovery import Discovery
from decodepool_gateway.gateway import Gateway
from decodepool_gateway.placements import QueueLimits
from decodepool_gateway.polling import Poller

logger = logging.getLogger("decodepool.gateway")


@dataclass(frozen=True)
class GatewayOptions:
    """How to stand before a pool. `drain_timeout_seconds` is what requests have after the first signal.

    `lifeline` is a descriptor whose writing end a parent holds: when it closes, the parent is dead, and this process
    ends.
    """

    pool: str
    discovery: Discovery
    keys: ApiKeys
    queue: QueueLimits = field(default_factory=QueueLimits)
    drain_timeout_seconds: float = 30.0
    lifeline: int | None = None


async def serve_until_stopped(options: GatewayOptions, listener: socket.socket) -> int:
    """Serve until a signal; return the exit code."""
    signals = Signals(logger, options.lifeline)
    gateway = Gateway(options.pool, options.keys, options.queue)
    try:
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(each) for each in background(gateway, options)]
            async with serving(gateway, listener) as connections:
                await signals.first.wait()
                await _drain(gateway, connections, signals, options.drain_timeout_seconds)
            for task in work:
                task.cancel()
    finally:
        signals.remove()
        await gateway.upstream.close()
    return 0


def background(gateway: Gateway, options: GatewayOptions) -> list[Coroutine[None, None, None]]:
    """Return what runs beside the requests: discovery, polls, the key file, the live page's lines."""
    poller = Poller(gateway.pool, gateway.upstream)
    return [poller.run(), options.discovery.run(poller.discovered), follow(options.keys), gateway.live.run()]


@asynccontextmanager
async def serving(gateway: Gateway, listener: socket.socket) -> AsyncIterator[ClientConnections]:
    """Serve on a listening socket for the time of the block."""
    app = build_application(gateway)
    runner, server = await started(app)
    connections = ClientConnections(app[IDENTITY], server, connection_limit(MOST_CONNECTIONS, DESCRIPTORS_EACH))
    await connections.listen(listener)
    try:
        yield connections
    finally:
        gateway.draining = True
        connections.stop_listening()
        gateway.end()
        connections.drop_waiting()
        with suppress(TimeoutError):
            await asyncio.wait_for(connections.idle(), LAST_WORDS_SECONDS)
        await runner.cleanup()


async def _drain(gateway: Gateway, connections: ClientConnections, signals: Signals, timeout_seconds: float) -> None:
    """Wait for what is under way, until the deadline or the second signal."""
    gateway.draining = True
    connections.stop_listening()
    connections.drop_waiting()
    logger.info("draining: what is under way has %g s; a second signal ends it now", timeout_seconds)
    ends = [asyncio.ensure_future(each) for each in (connections.idle(), signals.second.wait())]
    done, waiting = await asyncio.wait(ends, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    for end in waiting:
        end.cancel()
    logger.info("drained" if ends[0] in done else "what is still under way is ended")
