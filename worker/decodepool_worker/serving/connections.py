"""The connections of a worker: how many there may be, who makes room, and how they end.

Where there are too many, the connection that has waited longest makes room: a probe gets through however many others
only wait.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from decodepool_web.connections import Connection, Connections, connection_limit, started
from decodepool_web.server_identity import IDENTITY, ServerIdentity

from decodepool_worker.serving.service import Service

logger = logging.getLogger("decodepool.http")

MOST_CONNECTIONS = 4096

BUSY_MARGIN = 16
"""How far busy connections may exceed the limit: short requests, probes among them, go on beside long ones."""

LAST_ANSWERS_SECONDS = 0.1
"""How long those have that were just told to give up a body."""


@asynccontextmanager
async def listening(app: web.Application, service: Service, listener: socket.socket) -> AsyncIterator[None]:
    """Serve an application on a listening socket; afterwards close it, and every connection as soon as it is done."""
    runner, server = await started(app)
    connections = WorkerConnections(app[IDENTITY], server, connection_limit(MOST_CONNECTIONS))
    await connections.listen(listener)
    try:
        yield
    finally:
        connections.stop_listening()
        service.stop_reading()
        service.offload.close()
        await asyncio.sleep(LAST_ANSWERS_SECONDS)
        connections.drop_waiting()
        await runner.cleanup()


class WorkerConnections(Connections):
    """Every open connection of a worker; a new one makes the oldest go where there are too many."""

    def __init__(self, identity: ServerIdentity, server: web.Server, limit: int) -> None:
        super().__init__(identity, server, limit)
        self._told = False

    def enter(self, connection: Connection) -> None:
        """Take a new connection, and make room for it."""
        super().enter(connection)
        if not self.are_too_many:
            return
        oldest = next(iter(self.waiting))
        if oldest is connection and len(self.busy) < self.limit + BUSY_MARGIN:
            return  # it alone waits: it may yet ask for something short
        self._tell()
        oldest.drop()

    def _tell(self) -> None:
        if not self._told:
            logger.warning("over %d connections: the one that has waited longest makes room, each time", self.limit)
        self._told = True
