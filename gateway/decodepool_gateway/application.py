"""The aiohttp application: the route table, and the middlewares that every request passes, outermost first.

`recorded` counts and logs, `closing` ends connections while the gateway drains, `refusing` turns faults into OpenAI's
error object, `translating` those of workers into refusals, `keyed` asks for the API key.
"""

from __future__ import annotations

import logging

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_web.application import add_routes, recorded, refusing
from decodepool_web.routes import Handler
from decodepool_web.server_identity import IDENTITY, ServerIdentity

from decodepool_gateway.gateway import GATEWAY, Gateway, gateway_of
from decodepool_gateway.routes import ROUTES
from decodepool_gateway.upstream import WorkerLost, WorkerUnreachable

logger = logging.getLogger("decodepool.gateway.http")

PUBLIC_PATHS = frozenset(route.path for route in ROUTES if route.public)


def build_application(gateway: Gateway) -> web.Application:
    """Return the application that stands before the pool."""
    middlewares = [recorded, closing, refusing, translating, keyed]
    app = web.Application(middlewares=middlewares, client_max_size=gateway.bodies.max_body_bytes)
    app[GATEWAY] = gateway
    app[IDENTITY] = ServerIdentity("gateway", logger, gateway.metrics)
    add_routes(app, ROUTES)
    return app


@web.middleware
async def closing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Close the connection after its answer while the gateway drains."""
    response = await handler(request)
    if gateway_of(request).draining:
        response.force_close()
    return response


@web.middleware
async def translating(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what a worker failed at."""
    try:
        return await handler(request)
    except WorkerUnreachable as error:
        raise ApiError("worker_unreachable", f"{error}; nothing was done") from error
    except WorkerLost as error:
        raise ApiError("worker_lost", f"{error}; what it did of this request is not known") from error


@web.middleware
async def keyed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ask for the API key, except where the route is public."""
    if request.path not in PUBLIC_PATHS:
        gateway_of(request).keys.check(request.headers.get("Authorization", ""))
    return await handler(request)
