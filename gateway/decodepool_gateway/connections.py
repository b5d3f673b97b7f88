"""The gateway's client connections: how many there may be, and how long one may take to say what it wants.

Where there are too many, the one that has waited longest for its client makes room: probes get through.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import web
from decodepool_sizing.api_errors import ApiError

from decodepool_gateway.answers import json_answer
from decodepool_gateway.sockets import BACKLOG

logger = logging.getLogger("decodepool.gateway.http")

HEADER_SECONDS = 20.0
"""From the connection to the end of its first request's header."""

KEEPALIVE_SECONDS = 75.0
"""From an answer to the end of the next request's header."""

MOST_CONNECTIONS = 8192
FEWEST_CONNECTIONS = 16

SPARE_DESCRIPTORS = 64
"""Left to everything else."""

DESCRIPTORS_EACH = 2
"""A client's connection, and the worker's behind it."""

ACCEPTED_AT_ONCE = 16
FIRST_FAULT_OF_THE_GATEWAY = 500
SHOWN_CHARACTERS = 200


def connection_limit() -> int:
    """Return how many clients the process has descriptors for, at most `MOST_CONNECTIONS`."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    free = files - _open_descriptors() - SPARE_DESCRIPTORS
    return max(FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, free // DESCRIPTORS_EACH))


def _open_descriptors() -> int:
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    return 0


class Connections:
    """Every open client connection: those that wait for a request, longest first, and the busy ones."""

    def __init__(self, server: web.Server, on_refusal: Callable[[str], None], limit: int) -> None:
        self.on_refusal = on_refusal
        self._server = server
        self._limit = limit
        self._waiting: dict[Connection, None] = {}
        self._busy: set[Connection] = set()
        self._accepting: asyncio.Server | None = None
        self._idle = asyncio.Event()
        self._idle.set()

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

    async def idle(self) -> None:
        """Return once no request is being answered."""
        await self._idle.wait()

    def wait(self, connection: Connection) -> None:
        """Note that a connection waits for its client's next request; where there are too many, the oldest goes."""
        self._busy.discard(connection)
        self._waiting[connection] = None
        self._note_idle()
        if len(self._waiting) + len(self._busy) > self._limit:
            next(iter(self._waiting)).drop()

    def work(self, connection: Connection) -> None:
        """Note that a request of a connection is being answered."""
        self._waiting.pop(connection, None)
        self._busy.add(connection)
        self._idle.clear()

    def leave(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._waiting.pop(connection, None)
        self._busy.discard(connection)
        self._note_idle()

    def drop_waiting(self) -> None:
        """Close every connection that has its answers, and may only have more to ask."""
        for connection in list(self._waiting):
            if not connection.is_sending:
                connection.drop()

    def _note_idle(self) -> None:
        if not self._busy:
            self._idle.set()


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
        self._connections.wait(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        self._no_deadline()
        self._connections.leave(self)
        super().connection_lost(exc)

    @property
    def is_sending(self) -> bool:
        """Whether the client has yet to take some of an answer."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def begin(self) -> None:
        """Note that a request has come."""
        self._no_deadline()
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
        if status < FIRST_FAULT_OF_THE_GATEWAY:
            text = " ".join((message or "not HTTP").split())[:SHOWN_CHARACTERS]
            fault = ApiError("malformed_request", f"the request cannot be read: {text}")
        else:
            logger.error("a request failed below the router", exc_info=exc)
            fault = ApiError("internal_error", "the gateway failed to answer; its log says why")
        self._connections.on_refusal(fault.code)
        answer = json_answer(fault.body(), fault.status, fault.headers())
        answer.force_close()
        return answer

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
