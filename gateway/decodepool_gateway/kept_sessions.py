"""Requests for a session that is there: its id says which worker has it."""

from __future__ import annotations

import asyncio

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_sizing.session_ids import tag_of

from decodepool_gateway.gateway import gateway_of
from decodepool_gateway.pool import Pool
from decodepool_gateway.relay import relay
from decodepool_gateway.workers import Worker

OK = 200

NEWS_SECONDS = 1.0
"""How much later than another gateway this one may hear of a new worker."""

LOOK_SECONDS = 0.05


async def use_session(request: web.Request) -> web.StreamResponse:
    """Pass a request on to the worker that has its session."""
    gateway = gateway_of(request)
    async with gateway.body_of(request) as body:
        worker = await worker_of(gateway.pool, request.match_info["id"])
        async with gateway.passed_on(request, worker, body) as answer:
            if request.method == "DELETE" and answer.status == OK:
                gateway.placements.released(worker)
            return await relay(request, answer)


async def worker_of(pool: Pool, session_id: str) -> Worker:
    """Return the worker that has a session; raise `ApiError` `session_gone` or `unknown_session`."""
    tag = tag_of(session_id)
    worker = None if tag is None else await _found(pool, tag)
    if worker is not None:
        return worker
    departed = None if tag is None else pool.departed(tag)
    if departed is not None:
        raise ApiError("session_gone", f"session {session_id!r} is gone: its worker {departed} has left the pool")
    raise ApiError("unknown_session", f"no worker of this pool has a session {session_id[:100]!r}")


async def _found(pool: Pool, tag: str) -> Worker | None:
    """Return the worker with a tag. One unheard of may be new, and another gateway may know it already: look again."""
    for _ in range(round(NEWS_SECONDS / LOOK_SECONDS)):
        if (worker := pool.find(tag)) is not None or pool.departed(tag) is not None:
            return worker
        await asyncio.sleep(LOOK_SECONDS)
    return pool.find(tag)
