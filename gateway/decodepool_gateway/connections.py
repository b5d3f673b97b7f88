"""The gateway's client connections: how many there may be, and when none is busy.

Where there are too many, the one that has waited longest for its client makes room: probes get through.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from decodepool_web.connections import Connection, Connections
from decodepool_web.server_identity import ServerIdentity

MOST_CONNECTIONS = 8192

DESCRIPTORS_EACH = 2
"""A client's connection, and the worker's behind it."""


class ClientConnections(Connections):
    """Every open client connection. `idle` tells when no request is being answered."""

    def __init__(self, identity: ServerIdentity, server: web.Server, limit: int) -> None:
        super().__init__(identity, server, limit)
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Return once no request is being answered."""
        await self._idle.wait()

    def wait(self, connection: Connection) -> None:
        """Note that a connection waits for its client's next request; where there are too many, the oldest goes."""
        super().wait(connection)
        self._note_idle()
        if self.are_too_many:
            next(iter(self.waiting)).drop()

    def work(self, connection: Connection) -> None:
        """Note that a request of a connection is being answered."""
        super().work(connection)
        self._idle.clear()

    def leave(self, connection: Connection) -> None:
        """Forget a closed connection."""
        super().leave(connection)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self.busy:
            self._idle.set()
