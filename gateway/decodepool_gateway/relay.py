"""A worker's answer on its way to the client: its status and headers, and its body as it comes."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import aiohttp
from aiohttp import web
from decodepool_sizing.api_errors import FAULTS, ApiError
from decodepool_web.application import ANSWERED, FIRST_FAULT, REASON, Reason

from decodepool_gateway.event_blocks import EventBlocks
from decodepool_gateway.gateway import Gateway, gateway_of
from decodepool_gateway.headers import to_client

EVENT_STREAM = "text/event-stream"
QUIET_SECONDS = 30.0
"""How long a stream may stand still. A worker says something every 10 s; a client that takes nothing is dropped."""

MOVED_SECONDS = 1.0
"""How often the end of that is put off: a timer costs as much as half an event."""

MOST_WHOLE_BYTES = 256 << 10
"""An answer up to here goes out in one piece."""

LAST_EVENTS = (b"event: done\n", b"event: error\n", b"data: [DONE]\n")


async def relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Pass an answer on. A stream that the worker breaks off ends with `event: error`."""
    headers = to_client(answer.headers)
    if answer.content_type == EVENT_STREAM:
        return await _relay_events(request, answer, web.StreamResponse(status=answer.status, headers=headers))
    if request.method != "HEAD" and answer.content_length is not None and answer.content_length <= MOST_WHOLE_BYTES:
        async with gateway_of(request).until_the_end():
            body = await answer.read()
        if answer.status >= FIRST_FAULT:
            _note_reason(request, body)
        return web.Response(body=body, status=answer.status, headers=headers)
    return await _relay_pieces(request, answer, web.StreamResponse(status=answer.status, headers=headers))


def _note_reason(request: web.Request, body: bytes) -> None:
    """Note why a worker refused a request, for its line."""
    with suppress(ValueError, LookupError, TypeError):
        error = json.loads(body)["error"]
        if error["code"] in FAULTS and isinstance(error["param"], str | None):
            request[REASON] = Reason(error["code"], error["param"])


async def _relay_pieces(
    request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse
) -> web.StreamResponse:
    """Pass on a large answer, or the head of one. What is cut short here is cut short for the client, too: the
    connection closes.
    """
    response.content_length = answer.content_length
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await response.write(piece)
    except aiohttp.ClientPayloadError as error:
        raise ConnectionError(f"the worker broke its answer off: {error}") from None
    await response.write_eof()
    return response


async def _relay_events(
    request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse
) -> web.StreamResponse:
    gateway = gateway_of(request)
    await response.prepare(request)
    with gateway.metrics.streams.track_inprogress():
        fault = await _pass_events(request, answer, response, gateway)
        if fault is not None:
            gateway.metrics.refused.labels(fault.code).inc()
            await response.write(f"event: error\ndata: {json.dumps(fault.body())}\n\n".encode())
    await response.write_eof()
    return response


async def _pass_events(
    request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse, gateway: Gateway
) -> ApiError | None:
    """Pass events on until the stream's end; return what went wrong, if something did."""
    blocks, clock, moved_at = EventBlocks(), asyncio.get_running_loop().time, float("-inf")
    try:
        async with gateway.until_the_end() as deadline:
            while True:
                if clock() - moved_at > MOVED_SECONDS and not gateway.ending:
                    moved_at = clock()
                    deadline.reschedule(moved_at + QUIET_SECONDS)
                try:
                    piece = await answer.content.readany()
                except (aiohttp.ClientError, OSError):
                    return ApiError("worker_lost", "the worker ended in the middle of this stream")
                if not piece:
                    return None
                if events := blocks.feed(piece):
                    if events.startswith(LAST_EVENTS) or events.endswith(b"data: [DONE]\n\n"):
                        request[ANSWERED] = True
                    await response.write(events)
    except ApiError as ending:
        return ending
    except TimeoutError:
        _require_reader(request)
        return ApiError("worker_lost", f"the worker has said nothing for {QUIET_SECONDS:g} s")


def _require_reader(request: web.Request) -> None:
    """Drop a client that has not taken what was written: raise `ConnectionError`."""
    transport = request.transport
    if transport is not None and transport.get_write_buffer_size() > 0:
        transport.abort()
        raise ConnectionError(f"the client has not read for {QUIET_SECONDS:g} s")
