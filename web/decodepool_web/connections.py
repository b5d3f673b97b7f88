"""Connections: how many there may be, and how long one may take to say what it wants.

Python's server gives a connection 75 s before its first request and afterwards between two, and takes as many as there
are descriptors. Here the first request has a deadline of its own. Who makes room where there are too many, each server
decides for itself.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import suppress
from pathlib import Path

from aiohttp import web
from decodepool_sizing.api_errors import ApiError

from decodepool_web.server_identity import ServerIdentity
from decodepool_web.sockets import BACKLOG

HEADER_SECONDS = 20.0
"""From the connection to the end of its first request's header."""

KEEPALIVE_SECONDS = 75.0
"""From an answer to the end of the next request's header."""

LAST_WORDS_SECONDS = 2.0
"""How long handlers have to write their last events."""

FEWEST_CONNECTIONS = 16

SPARE_DESCRIPTORS = 64
"""Left to everything else: those just accepted, those being closed, a model file, logs."""

ACCEPTED_AT_ONCE = 16
"""Connections taken before the first of them is looked at, and perhaps makes another one go."""

FIRST_FAULT_OF_THE_SERVER = 500
SHOWN_CHARACTERS = 200


def connection_limit(most: int, descriptors_each: int = 1) -> int:
    """Return how many connections the process has descriptors for, at most `most`."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return most
    free = files - _open_descriptors() - SPARE_DESCRIPTORS
    return max(FEWEST_CONNECTIONS, min(most, free // descriptors_each))


def _open_descriptors() -> int:
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    return 0


async def started(app: web.Application) -> tuple[web.AppRunner, web.Server]:
    """Start an application; return what ends it, and the server whose connections it answers."""
    runner = web.AppRunner(
        app,
        handler_cancellation=True,  # a client that leaves ends its handler, also one that has nothing to write
        access_log=None,
        shutdown_timeout=LAST_WORDS_SECONDS,
    )
    await runner.setup()
    assert runner.server is not None
    return runner, runner.server


class Connections:
    """Every open connection of one server: those that wait for a request, longest first, and the busy ones."""

    def __init__(self, identity: ServerIdentity, server: web.Server, limit: int) -> None:
        self.identity = identity
        self.limit = limit
        self.waiting: dict[Connection, None] = {}
        self.busy: set[Connection] = set()
        self._server = server
        self._accepting: asyncio.Server | None = None

    @property
    def are_too_many(self) -> bool:
        """Whether one has to go."""
        return len(self.waiting) + len(self.busy) > self.limit

    async def listen(self, listener: socket.socket) -> None:
        """Serve on a listening socket."""
        loop = asyncio.get_running_loop()
        self._accepting = await loop.create_server(
            lambda: Connection(self, self._server), sock=listener, backlog=ACCEPTED_AT_ONCE
        )
        listener.listen(BACKLOG)  # the loop has one number for this queue and for how many it takes at once

    def stop_listening(self) -> None:
        """Let nobody connect any more."""
        if self._accepting is not None:
            self._accepting.close()

    def enter(self, connection: Connection) -> None:
        """Take a new connection."""
        self.wait(connection)

    def wait(self, connection: Connection) -> None:
        """Note that a connection waits for its client's next request, from now on."""
        self.busy.discard(connection)
        self.waiting[connection] = None

    def work(self, connection: Connection) -> None:
        """Note that a request of a connection is being answered."""
        self.waiting.pop(connection, None)
        self.busy.add(connection)

    def leave(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self.waiting.pop(connection, None)
        self.busy.discard(connection)

    def drop_waiting(self) -> None:
        """Close every connection that has its answers, and may only have more to ask."""
        for connection in list(self.waiting):
            if not connection.is_sending:
                connection.drop()


class Connection(web.RequestHandler):
    """One connection. What is wrong with a request below the router is answered with the error object, too."""

    def __init__(self, connections: Connections, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=KEEPALIVE_SECONDS,
            auto_decompress=False,
        )
        self._connections = connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._deadline = asyncio.get_running_loop().call_later(HEADER_SECONDS, self.drop)
        self._connections.enter(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        self._no_deadline()
        self._connections.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        super().data_received(data)
        self._end_broken_body()

    @property
    def is_sending(self) -> bool:
        """Whether the client has yet to take some of an answer."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def begin(self) -> None:
        """Note that a request has come."""
        self._no_deadline()
        self._connections.work(self)
        self._end_broken_body()  # the fault may have come before the request was taken up

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
        identity = self._connections.identity
        if status < FIRST_FAULT_OF_THE_SERVER:
            text = " ".join((message or "not HTTP").split())[:SHOWN_CHARACTERS]
            fault = ApiError("malformed_request", f"the request cannot be read: {text}")
        else:
            identity.logger.error("a request failed below the router", exc_info=exc)
            fault = identity.internal_error()
        answer = identity.refusal(fault)
        answer.force_close()
        return answer

    def _end_broken_body(self) -> None:
        """End a body where no HTTP goes on: aiohttp would have its reader wait for more."""
        request = self._current_request
        if request is None or request.content.is_eof() or not self._messages:
            return
        fault = getattr(self._messages[-1][0], "exc", None)  # of what is no request
        if fault is not None:
            request.content.set_exception(web.RequestPayloadError(getattr(fault, "message", str(fault))))
            request.content.feed_eof()

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
