"""The connections of the operator's two ports, which any pod may open: what all of them may hold at once is bounded.

A stranger's connection is one over which nothing has come yet that only the API server knows. There are so many of
these and no more, each for so long: where there is one too many, the oldest goes, whatever it does. Since one is taken
in each turn of the loop, one that speaks at once has hundreds of turns for it, however fast others come.
"""

from __future__ import annotations

import asyncio
import http
import logging
import socket
import ssl

from aiohttp import web

STRANGER_SECONDS = 20.0
"""How long a stranger's connection lasts: from TCP's, through TLS, to the end of its answers."""

KEEPALIVE_SECONDS = 300.0
"""Between two requests of the API server, which itself closes what it has not used for 90 s."""

BACKLOG = 128
"""Connections that the kernel holds ready."""

MOST_HEADERS = 32
"""Of a request, each of up to 8 KiB."""

ACCEPT_RETRY_SECONDS = 0.1

log = logging.getLogger(__name__)


class Connections:
    """A listening port and the strangers at it, of whom there are at most so many."""

    def __init__(self, application: web.Application, port: int, most: int, tls: ssl.SSLContext | None = None) -> None:
        self._runner = web.AppRunner(application, access_log=None)
        self._port = port
        self._most = most
        self._tls = tls
        self._strangers: dict[Connection, None] = {}
        self._told = False
        self._listener: socket.socket | None = None

    async def open(self) -> None:
        """Listen, on every address there is. Raises `OSError`."""
        await self._runner.setup()
        self._listener = listening_socket(self._port)
        self._listen()

    async def close(self) -> None:
        """Listen no more, drop strangers, and end the other connections once what is asked is answered."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for stranger in list(self._strangers):
            stranger.drop()
        await self._runner.cleanup()

    def _listen(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        """Take one connection: the loop comes again, after all others' turns, while there are more."""
        loop = asyncio.get_running_loop()
        try:
            made, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it is gone already
            return
        except OSError:  # there are no descriptors
            loop.remove_reader(listener)
            loop.call_later(ACCEPT_RETRY_SECONDS, self._listen)
            return
        self._take(made)

    def _take(self, made: socket.socket) -> None:
        assert self._runner.server is not None
        connection = Connection(self, self._runner.server)
        self._strangers[connection] = None
        connection.begin(made, self._tls)
        if len(self._strangers) > self._most:
            if not self._told:
                log.warning("port %d: over %d connections, the oldest makes room each time", self._port, self._most)
            self._told = True
            next(iter(self._strangers)).drop()

    def leave(self, connection: Connection) -> None:
        """Count a connection no longer: it is closed, or no stranger's."""
        self._strangers.pop(connection, None)


class Connection(web.RequestHandler):
    """One connection, a stranger's at first."""

    def __init__(self, connections: Connections, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=KEEPALIVE_SECONDS,
            max_headers=MOST_HEADERS,
        )
        self._connections = connections
        self._deadline = asyncio.get_running_loop().call_later(STRANGER_SECONDS, self.drop)
        self._entering: asyncio.Task[None] | None = None
        self._wire: asyncio.Transport | None = None  # aiohttp forgets its own before TLS has ended

    def begin(self, made: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Speak over an accepted socket."""
        self._entering = asyncio.create_task(self._enter(made, tls))
        self._entering.add_done_callback(lambda _: None if self._wire else made.close())

    async def _enter(self, made: socket.socket, tls: ssl.SSLContext | None) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self, made, ssl=tls)
        except OSError as error:  # it does not speak TLS, or has gone meanwhile
            error.__traceback__ = None  # asyncio's frames hold it, and it them
            self._leave()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        super().connection_made(transport)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is not HTTP, which fills no log; let go of the frames that found it so: they hold themselves,
        and TLS.
        """
        if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        if exc is not None:
            exc.__traceback__ = None
        answer = web.Response(status=status)
        answer.force_close()
        return answer

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        self._leave()
        self._wire = None  # nothing waits for the garbage collector: what TLS holds is large
        for message, _ in self._messages:
            if isinstance(error := getattr(message, "exc", None), Exception):
                error.__traceback__ = None
        super().connection_lost(exc)

    def stay(self) -> None:
        """Be a stranger's no longer."""
        self._leave()

    def drop(self) -> None:
        """Close it at once, be it in the middle of a word."""
        self._leave()
        if self._wire is not None:
            self._wire.abort()
        elif self._entering is not None:
            self._entering.cancel()
        self._entering = None

    def _leave(self) -> None:
        self._deadline.cancel()
        self._connections.leave(self)


def welcome(request: web.BaseRequest) -> None:
    """Let the connection of a request stay as long as it is used: it was the API server who asked."""
    if isinstance(request.protocol, Connection):
        request.protocol.stay()


def listening_socket(port: int) -> socket.socket:
    """Return a socket that listens to both versions of IP, where there are both."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    made = socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    made.setblocking(False)
    return made
