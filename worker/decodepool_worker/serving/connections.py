"""The connections of a worker: how many there may be, and how long one may take to say what it wants.

Python's server gives a connection 75 s before its first request and afterwards between two, and takes as many as there
are descriptors. Here the first request has a deadline of its own, and where there are too many, the connection that has
waited longest makes room: a probe gets through however many others only wait.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import web
from decodepool_sizing.api_errors import ApiError

from decodepool_worker.serving.requests import json_answer
from decodepool_worker.serving.service import Service
from decodepool_worker.serving.sockets import BACKLOG

logger = logging.getLogger("decodepool.http")

HEADER_SECONDS = 20.0
"""From the connection to the end of its first request's header."""

KEEPALIVE_SECONDS = 75.0
"""From an answer to the end of the next request's header."""

MOST_CONNECTIONS = 4096
FEWEST_CONNECTIONS = 16

SPARE_DESCRIPTORS = 64
"""Left to everything else: those just accepted, those being closed, a model file, logs."""

ACCEPTED_AT_ONCE = 16
"""Connections taken before the first of them is looked at, and perhaps makes another one go."""

BUSY_MARGIN = 16
"""How far busy connections may exceed the limit: short requests, probes among them, go on beside long ones."""

FIRST_FAULT_OF_THE_WORKER = 500
SHOWN_CHARACTERS = 200

LAST_WORDS_SECONDS = 2.0
"""How long handlers have to write their last events once there is nothing left to decode."""

LAST_ANSWERS_SECONDS = 0.1
"""How long those have that were just told to give up a body."""


def connection_limit() -> int:
    """Return how many connections the process has descriptors for, at most `MOST_CONNECTIONS`."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, files - _open_descriptors() - SPARE_DESCRIPTORS))


def _open_descriptors() -> int:
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    return 0


@asynccontextmanager
async def listening(app: web.Application, service: Service, listener: socket.socket) -> AsyncIterator[Connections]:
    """Serve an application on a listening socket; afterwards close it, and every connection as soon as it is done."""
    runner = web.AppRunner(
        app,
        handler_cancellation=True,  # a client that leaves ends its handler, also one that has nothing to write
        access_log=None,
        shutdown_timeout=LAST_WORDS_SECONDS,
    )
    await runner.setup()
    assert runner.server is not None
    connections = Connections(service, runner.server, connection_limit())
    accepting = await connections.listen(listener)
    try:
        yield connections
    finally:
        accepting.close()
        service.stop_reading()
        await asyncio.sleep(LAST_ANSWERS_SECONDS)
        connections.drop_waiting()
        await runner.cleanup()


class Connections:
    """Every open connection of one server: those that wait for a request, longest first, and the busy ones."""

    def __init__(self, service: Service, server: web.Server, limit: int) -> None:
        self.service = service
        self._server = server
        self._limit = limit
        self._waiting: dict[Connection, None] = {}
        self._busy: set[Connection] = set()
        self._told = False

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Serve on a listening socket."""
        loop = asyncio.get_running_loop()
        made = await loop.create_server(self._connect, sock=listener, backlog=ACCEPTED_AT_ONCE)
        listener.listen(BACKLOG)  # the loop has one number for this queue and for how many it takes at once
        return made

    def enter(self, connection: Connection) -> None:
        """Take a new connection, and make room for it."""
        self.wait(connection)
        if len(self._waiting) + len(self._busy) <= self._limit:
            return
        oldest = next(iter(self._waiting))
        if oldest is connection and len(self._busy) < self._limit + BUSY_MARGIN:
            return  # it alone waits: it may yet ask for something short
        self._tell()
        oldest.drop()

    def wait(self, connection: Connection) -> None:
        """Note that a connection waits for its client's next request, from now on."""
        self._busy.discard(connection)
        self._waiting[connection] = None

    def work(self, connection: Connection) -> None:
        """Note that a request of a connection is being answered."""
        self._waiting.pop(connection, None)
        self._busy.add(connection)

    def leave(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._waiting.pop(connection, None)
        self._busy.discard(connection)

    def drop_waiting(self) -> None:
        """Close every connection that has its answers, and may only have more to ask."""
        for connection in list(self._waiting):
            if not connection.is_sending:
                connection.drop()

    def _connect(self) -> Connection:
        return Connection(self, self._server)

    def _tell(self) -> None:
        if not self._told:
            logger.warning("over %d connections: the one that has waited longest makes room, each time", self._limit)
        self._told = True


class Connection(web.RequestHandler):
    """One connection. What is wrong with a request below the router is answered with the error object, too."""

    def __init__(self, connections: Connections, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, access_log=None, keepalive_timeout=KEEPALIVE_SECONDS)  # type: ignore[arg-type]
        self._connections = connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._deadline = asyncio.get_running_loop().call_later(HEADER_SECONDS, self.drop)
        self._connections.enter(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        self._answer_begins()
        self._connections.leave(self)
        super().connection_lost(exc)

    @property
    def is_sending(self) -> bool:
        """Whether the client has yet to take some of an answer."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def begin(self) -> None:
        """Note that a request has come."""
        self._answer_begins()
        self._connections.work(self)

    def end(self) -> None:
        """Note that its answer is made."""
        if self.transport is not None:
            self._connections.wait(self)

    def drop(self) -> None:
        """Close the connection, once what is written is sent."""
        self._connections.leave(self)
        self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what never reached a handler, or was lost after it, and close the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: there is no place for another")
        if status < FIRST_FAULT_OF_THE_WORKER:
            text = " ".join((message or "not HTTP").split())[:SHOWN_CHARACTERS]
            fault = ApiError("malformed_request", f"the request cannot be read: {text}")
        else:
            logger.error("a request failed below the router", exc_info=exc)
            fault = ApiError("internal_error", "the worker failed to answer; its log says why")
        self._connections.service.metrics.refused.labels(fault.code).inc()
        answer = json_answer(fault.body(), fault.status, fault.headers())
        answer.force_close()
        return answer

    def _answer_begins(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
