"""Requests that need a place: a session of their own, for good or for as long as they last."""

from __future__ import annotations

import asyncio

from aiohttp import web

from decodepool_gateway.gateway import Gateway, gateway_of
from decodepool_gateway.placements import Place
from decodepool_gateway.relay import relay
from decodepool_gateway.upstream import WorkerUnreachable

FULL = 429
UNAVAILABLE = 503
REFUSED = 400


async def create_session(request: web.Request) -> web.StreamResponse:
    """Create a session on the worker with most room."""
    return await _placed(request, lasts=True)


async def complete(request: web.Request) -> web.StreamResponse:
    """Answer from a session that lives as long as the request."""
    return await _placed(request, lasts=False)


async def _placed(request: web.Request, *, lasts: bool) -> web.StreamResponse:
    """Try one worker after the other, as places come free, until one takes the request or the queue's time is up."""
    gateway = gateway_of(request)
    clock = asyncio.get_running_loop().time
    async with gateway.body_of(request) as body:
        ticket, began = gateway.placements.ticket(), clock()
        while True:
            async with gateway.until_the_end():
                place = await gateway.placements.place(ticket)
            gateway.metrics.queue_seconds.observe(clock() - began)
            answer = await _tried(request, gateway, place, body, lasts=lasts)
            if answer is not None:
                return answer


async def _tried(
    request: web.Request, gateway: Gateway, place: Place, body: bytes | None, *, lasts: bool
) -> web.StreamResponse | None:
    """Answer from this worker; None if it has no room, takes no sessions or is not there."""
    outcomes, placements, worker = gateway.metrics.placements, gateway.placements, place.worker
    try:
        async with gateway.passed_on(request, worker, body) as answer:
            placements.answered(place)
            if answer.status == FULL:
                worker.full()
                outcomes.labels("full").inc()
                return None
            if answer.status == UNAVAILABLE:
                placements.unreachable(worker)
                outcomes.labels("refused").inc()
                return None
            outcomes.labels("placed").inc()
            taken = lasts and answer.status < REFUSED
            try:
                return await relay(request, answer)
            finally:
                if not taken:
                    placements.released(worker)
    except WorkerUnreachable:
        placements.unreachable(worker)
        outcomes.labels("unreachable").inc()
        return None
