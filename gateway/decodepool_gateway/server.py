"""The life of a gateway process: listen, pass on, drain, end.

The first SIGTERM or SIGINT drains: readiness goes, nobody connects any more, idle connections close, and what is under
way goes on until it ends or the deadline passes; then streams get a last event. The second signal ends at once. Either
way the process ends with 0.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import web
from decodepool_sizing.api_keys import LOOK_SECONDS, ApiKeys

from decodepool_gateway.application import build_application
from decodepool_gateway.connections import Connections, connection_limit
from decodepool_gateway.discovery import Discovery
from decodepool_gateway.gateway import Gateway
from decodepool_gateway.placements import QueueLimits
from decodepool_gateway.polling import Poller

logger = logging.getLogger("decodepool.gateway")

LAST_WORDS_SECONDS = 2.0
"""How long handlers have to write their last events."""


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
    signals = Signals(options.lifeline)
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
    return [poller.run(), options.discovery.run(poller.discovered), _follow(options.keys), gateway.live.run()]


async def _follow(keys: ApiKeys) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        keys.reread()


@asynccontextmanager
async def serving(gateway: Gateway, listener: socket.socket) -> AsyncIterator[Connections]:
    """Serve on a listening socket for the time of the block."""
    runner = web.AppRunner(
        build_application(gateway),
        handler_cancellation=True,  # a client that leaves ends its handler, and that the worker's
        access_log=None,
        shutdown_timeout=LAST_WORDS_SECONDS,
    )
    await runner.setup()
    assert runner.server is not None
    refused = gateway.metrics.refused
    connections = Connections(runner.server, lambda code: refused.labels(code).inc(), connection_limit())
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


async def _drain(gateway: Gateway, connections: Connections, signals: Signals, timeout_seconds: float) -> None:
    """Wait for what is under way, until the deadline or the second signal."""
    gateway.draining = True
    connections.stop_listening()
    connections.drop_waiting()
    logger.info("draining: what is under way has %g s", timeout_seconds)
    ends = [asyncio.ensure_future(each) for each in (connections.idle(), signals.second.wait())]
    done, waiting = await asyncio.wait(ends, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    for end in waiting:
        end.cancel()
    logger.info("drained" if ends[0] in done else "what is still under way is ended")


class Signals:
    """The first SIGTERM or SIGINT, and the second. A cut lifeline is both at once."""

    def __init__(self, lifeline: int | None = None) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._came)
        self._lifeline = lifeline
        if lifeline is not None:
            self._loop.add_reader(lifeline, self._orphaned)

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def _orphaned(self) -> None:
        logger.warning("the parent process is gone: ending")
        self._let_go()
        self.first.set()
        self.second.set()

    def _let_go(self) -> None:
        if self._lifeline is not None:
            self._loop.remove_reader(self._lifeline)

    def remove(self) -> None:
        """Give the signals back."""
        self._let_go()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)
