"""Requests' bodies: read whole, so that a slow client holds no worker, and a refused request can go to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_web.deadlines import put_off
from decodepool_web.encodings import BodyReader

MAX_BODY_BYTES = 8 << 20
"""The workers' own limit: they would refuse more."""

MAX_HELD_BYTES = 128 << 20
"""Of all requests that wait for a place or are being passed on, together."""

BODY_SECONDS = 60.0
"""How long no more of a body may come."""

READ_BYTES = web.RequestKey("read_bytes", int)
"""Set on a request: how much of its body has come."""


class Bodies:
    """The bodies that are held now."""

    def __init__(self, max_body_bytes: int = MAX_BODY_BYTES, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self.max_body_bytes = max_body_bytes
        self._max_held_bytes = max_held_bytes
        self._held_bytes = 0

    @asynccontextmanager
    async def body(self, request: web.Request) -> AsyncIterator[bytes | None]:
        """Read a body and hold it for the time of the block; None where there is none.

        Raises `ApiError`: `body_too_large`, `request_timeout`, `overloaded`, or what `BodyReader` says of it.
        """
        if not request.body_exists:
            yield None
            return
        if (request.content_length or 0) > self.max_body_bytes:
            raise self._too_large()
        try:
            yield await self._read(request)
        finally:
            self._held_bytes -= request.get(READ_BYTES, 0)

    async def _read(self, request: web.Request) -> bytes:
        """Read a body; what came of it is counted as held, whether it all comes or not."""
        body, data = BodyReader(request), bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS) as deadline:
                while piece := await body.read():
                    data += piece
                    self._hold(request, len(piece))
                    put_off(deadline, BODY_SECONDS)
        except TimeoutError:
            raise ApiError("request_timeout", f"no more of the body came for {BODY_SECONDS:g} s") from None
        return bytes(data)

    def _hold(self, request: web.Request, more_bytes: int) -> None:
        self._held_bytes += more_bytes
        request[READ_BYTES] = request.get(READ_BYTES, 0) + more_bytes
        if request[READ_BYTES] > self.max_body_bytes:
            raise self._too_large()
        if self._held_bytes > self._max_held_bytes:
            raise ApiError("overloaded", f"the gateway holds {self._max_held_bytes} bytes of requests already")

    def _too_large(self) -> ApiError:
        return ApiError("body_too_large", f"the body is larger than {self.max_body_bytes} bytes")
