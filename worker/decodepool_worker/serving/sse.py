"""Server-sent events over one response: written with backpressure, kept alive, given up when the reader stalls.

A reader that stops reading costs the socket's buffers, 128 KiB here, and the events that its decode makes meanwhile:
0.2 KB a token, 2.6 KB with twenty log-probabilities, for `STALL_SECONDS` or the rest of a context. Then the connection
is dropped, which cancels the decode like any other disconnect; what is kept to resume it is a tenth of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from decodepool_web.answers import compact
from decodepool_web.application import ANSWERED

from decodepool_worker.serving.metrics import Metrics

KEEP_ALIVE_SECONDS = 10.0
STALL_SECONDS = 30.0

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}


class ReaderStalledError(ConnectionError):
    """The client has not read for `STALL_SECONDS`."""


class EventStream:
    """The writing end of one stream."""

    def __init__(self, response: web.StreamResponse, request: web.BaseRequest) -> None:
        self.response = response
        self._request = request
        self._last_write = asyncio.get_running_loop().time()

    async def send(self, block: str) -> None:
        """Write one or more whole events; raise `ConnectionError` when the reader is gone or stalled."""
        self._last_write = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await self.response.write(block.encode())
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ReaderStalledError(f"the client has not read for {STALL_SECONDS:.0f} s") from None

    async def send_last(self, block: str) -> None:
        """Write the last events; a client may hang up as soon as it has them, and has had its answer."""
        self._request[ANSWERED] = True
        await self.send(block)

    async def keep_alive(self) -> None:
        """Write a comment whenever nothing else was written for `KEEP_ALIVE_SECONDS`."""
        clock = asyncio.get_running_loop().time
        while True:
            quiet = clock() - self._last_write
            if quiet < KEEP_ALIVE_SECONDS:
                await asyncio.sleep(KEEP_ALIVE_SECONDS - quiet)
            else:
                await self.send(": keep-alive\n\n")


@asynccontextmanager
async def event_stream(request: web.Request, metrics: Metrics) -> AsyncIterator[EventStream]:
    """Answer a request with a stream; its keep-alive ends with the block."""
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    stream = EventStream(response, request)
    keeper = asyncio.create_task(_until_broken(stream))
    with metrics.streams.track_inprogress():
        try:
            yield stream
        finally:
            keeper.cancel()


async def _until_broken(stream: EventStream) -> None:
    """Keep alive; a broken connection is the writer's to notice, not this task's to report."""
    try:
        await stream.keep_alive()
    except ConnectionError:
        return


def event(name: str, data: Mapping[str, Any], event_id: int | None = None) -> str:
    """Return one named event; JSON has no line feed outside strings and escapes those inside, so `data` is one line."""
    identity = "" if event_id is None else f"id: {event_id}\n"
    return f"event: {name}\n{identity}data: {compact(data)}\n\n"


def data_line(data: Mapping[str, Any]) -> str:
    """Return one unnamed event, as OpenAI's streams have them."""
    return f"data: {compact(data)}\n\n"


DONE = "data: [DONE]\n\n"
