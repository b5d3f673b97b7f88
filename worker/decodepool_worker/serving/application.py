"""The aiohttp application: the route table, and the middlewares that every request passes, outermost first.

`recorded` counts and logs, `refusing` turns faults into OpenAI's error object, `translating` those of the rooms below
into refusals, `keyed` asks for the API key.
"""

from __future__ import annotations

import logging

from aiohttp import web
from decodepool_sizing.version import release
from decodepool_web.application import add_routes, recorded, refusing
from decodepool_web.routes import Handler
from decodepool_web.server_identity import IDENTITY, ServerIdentity

from decodepool_worker.serving.auth import check_local
from decodepool_worker.serving.openapi import document
from decodepool_worker.serving.routes import ROUTES
from decodepool_worker.serving.service import DOCUMENT, SERVICE, Service, service_of
from decodepool_worker.serving.translation import FORESEEN, translated

logger = logging.getLogger("decodepool.http")

MAX_BODY_BYTES = 8 << 20
"""A body of the longest id list there may be, and twice the longest sensible text."""

PUBLIC_PATHS = frozenset(route.path for route in ROUTES if route.public)
COUNTED_PATHS = PUBLIC_PATHS | {"/v1/capacity"}
"""What a worker for local clients answers to anybody: probes, metrics, and what it holds, which an operator counts."""


def build_application(service: Service, *, max_body_bytes: int = MAX_BODY_BYTES) -> web.Application:
    """Return the application that serves `service`."""
    app = web.Application(middlewares=[recorded, refusing, translating, keyed], client_max_size=max_body_bytes)
    app[SERVICE] = service
    app[IDENTITY] = ServerIdentity("worker", logger, service.metrics)
    app[DOCUMENT] = document(ROUTES, release(), keys=bool(service.keys.keys))
    add_routes(app, ROUTES)
    return app


@web.middleware
async def translating(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what the rooms below refuse."""
    try:
        return await handler(request)
    except FORESEEN as error:
        raise translated(error) from error


@web.middleware
async def keyed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ask for the API key, except where the route is public. A worker for local clients serves these alone, and tells
    everybody its counts: who asks for them, in another pod, cannot know whether this is a worker to give a key to.
    """
    service = service_of(request)
    if service.local_clients and request.path not in COUNTED_PATHS:
        check_local(request)
    if request.path not in (COUNTED_PATHS if service.local_clients else PUBLIC_PATHS):
        service.keys.check(request.headers.get("Authorization", ""))
    return await handler(request)
