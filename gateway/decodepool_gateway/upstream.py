"""The gateway's connections to its workers: kept alive, without delay, and given up when a worker vanishes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from decodepool_sizing.api_keys import ApiKeys
from decodepool_web.sockets import set_liveness
from yarl import URL

from decodepool_gateway.workers import Worker

CONNECT_SECONDS = 2.0
KEEPALIVE_SECONDS = 30.0
"""Well below the workers' 75 s, so that no request meets a connection that is just being closed."""

ASK_SECONDS = 2.0
UNAUTHORIZED = 401

OWN_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""What the client library would add to a request that is passed on as it came."""


class WorkerFault(Exception):  # noqa: N818  it says what happened, as the rooms' other faults do
    """A worker that could not be heard. `worker` is its name."""

    def __init__(self, worker: Worker, why: str) -> None:
        self.worker = worker.address.name
        super().__init__(f"worker {self.worker} {why}")


class WorkerUnreachable(WorkerFault):
    """Nothing reached the worker: the request may go elsewhere."""


class WorkerLost(WorkerFault):
    """The worker may have begun with the request, and its answer will not come."""


class Upstream:
    """Requests to workers. Make it on the event loop."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, socket_factory=_socket),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=OWN_HEADERS,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._http.close()

    @asynccontextmanager
    async def opened(
        self, worker: Worker, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the head of its answer. Left before the answer's end, the connection is closed.

        Raises `WorkerUnreachable` or `WorkerLost`. `path` is taken as it is, query and all.
        """
        url = URL(worker.address.url + path, encoded=True)
        try:
            answer = await self._http.request(method, url, headers=headers, data=body, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise WorkerUnreachable(worker, "cannot be reached") from None
        except (aiohttp.ClientError, OSError):
            raise WorkerLost(worker, "ended before it answered") from None
        try:
            yield answer
        finally:
            if answer.content.at_eof():
                answer.release()
            else:
                answer.close()

    async def ask(self, worker: Worker, path: str) -> Any:
        """Return the JSON that a worker answers the gateway itself with; None if its status is not 200.

        Raises `WorkerFault`. Tries every key: a worker may have been started with fewer of them.
        """
        keys: tuple[bytes | None, ...] = self._keys.keys or (None,)
        for key in keys:
            headers = {} if key is None else {"Authorization": f"Bearer {key.decode()}"}
            try:
                async with asyncio.timeout(ASK_SECONDS), self.opened(worker, "GET", path, headers) as answer:
                    if answer.status != UNAUTHORIZED:
                        return await answer.json() if answer.ok else None
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
                raise WorkerUnreachable(worker, f"did not answer {path}") from None
        return None


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    set_liveness(made)
    return made
