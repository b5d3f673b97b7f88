"""The life of a worker process: listen at once, load, serve, drain, end.

The first SIGTERM or SIGINT drains: readiness goes, new work is refused, streams go on until they end or the deadline
passes. The second ends them at once. Either way each gets a last event, unless the step it is in hangs, and the process
ends with 0. An engine that fails, in a drain too, ends it with 1, so that whoever supervises it starts a fresh one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from decodepool_web.keys import follow
from decodepool_web.signals import Signals

from decodepool_worker.serving.application import MAX_BODY_BYTES, build_application
from decodepool_worker.serving.connections import listening
from decodepool_worker.serving.service import Phase, Served, Service

logger = logging.getLogger("decodepool.server")

FAULT_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class ServerOptions:
    """How to serve. `drain_timeout_seconds` is what streams have after the first signal.

    `lifeline` is a descriptor whose writing end a parent holds: when it closes, the parent is dead, and this process
    ends.
    """

    drain_timeout_seconds: float = 30.0
    lifeline: int | None = None
    max_body_bytes: int = MAX_BODY_BYTES


Load = Callable[[], Served]
"""Load the model, on a thread of its own; what it raises ends the process."""


async def serve_until_stopped(
    service: Service,
    listener: socket.socket,
    load: Load,
    announce: Callable[[Served], None],
    options: ServerOptions | None = None,
) -> int:
    """Serve until a signal or a fault; return the exit code. Raises what `load` raises."""
    options = options or ServerOptions()
    stopping = Signals(logger, options.lifeline)
    app = build_application(service, max_body_bytes=options.max_body_bytes)
    beside = [asyncio.create_task(each) for each in (service.history.run(), follow(service.keys))]
    try:
        async with listening(app, service, listener):
            return await _live(service, load, announce, stopping, options)
    finally:
        for task in beside:
            task.cancel()
        stopping.remove()


async def _live(
    service: Service, load: Load, announce: Callable[[Served], None], stopping: Signals, options: ServerOptions
) -> int:
    loading = _on_thread(load)
    if not await _first(loading, stopping.first):
        service.phase = Phase.DRAINING
        return 0
    served = loading.result()
    served.worker.start()
    service.open(served)
    announce(served)
    try:
        fault = asyncio.ensure_future(_fault(service))
        if not await _first(fault, stopping.first):
            await _drain(service, served, stopping, options.drain_timeout_seconds)
        if service.fault:
            service.phase = Phase.FAILED
            logger.critical("%s", service.fault)
            return 1
        return 0
    finally:
        fault.cancel()
        if await served.worker.stop():  # an engine that is still in a step is left to the end of the process
            await asyncio.to_thread(served.close)


async def _drain(service: Service, served: Served, stopping: Signals, timeout_seconds: float) -> None:
    """Wait for the streams under way, until the deadline or the second signal."""
    service.phase = Phase.DRAINING
    service.stop_reading()
    logger.info("draining: running streams have %g s; a second signal ends them now", timeout_seconds)
    draining = asyncio.ensure_future(served.worker.drain(timeout_seconds))
    if await _first(draining, stopping.second) and not service.fault:
        logger.info("drained" if draining.result() else "the deadline has passed: what still runs is ended")
    draining.cancel()


async def _first(work: asyncio.Future[Any], signal_event: asyncio.Event) -> bool:
    """Wait for either; True if the work is done."""
    waiting: asyncio.Future[Any] = asyncio.ensure_future(signal_event.wait())
    await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return work.done()


async def _fault(service: Service) -> None:
    """Return when the engine has failed."""
    while service.fault is None:  # noqa: ASYNC110  the step loop's thread knows no event of this loop
        await asyncio.sleep(FAULT_POLL_SECONDS)


def _on_thread(load: Load) -> asyncio.Future[Served]:
    """Run `load` on a daemon thread: a signal during a long load ends the process without waiting for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Served] = loop.create_future()

    def run() -> None:
        try:
            served = load()
        except BaseException as error:  # whatever it is, it is raised where it is waited for
            _tell(loop, future, partial(future.set_exception, error))
        else:
            _tell(loop, future, partial(future.set_result, served))

    threading.Thread(target=run, name="decodepool-load", daemon=True).start()
    return future


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Served], settle: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended: nobody waits any more
        loop.call_soon_threadsafe(lambda: None if future.done() else settle())
