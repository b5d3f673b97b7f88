"""The aiohttp application: the route table, and the middlewares that every request passes, outermost first.

`recorded` counts and logs, `refusing` turns faults into OpenAI's error object, `keyed` asks for the API key.
"""

from __future__ import annotations

import asyncio
import logging
import time

from aiohttp import HttpVersion11, web
from decodepool_sizing.api_errors import ApiError
from decodepool_sizing.version import release

from decodepool_worker.serving.auth import check_local
from decodepool_worker.serving.connections import Connection
from decodepool_worker.serving.openapi import document
from decodepool_worker.serving.requests import json_answer
from decodepool_worker.serving.routes import ROUTES, Handler
from decodepool_worker.serving.service import DOCUMENT, SERVICE, Service, service_of
from decodepool_worker.serving.sse import ANSWERED
from decodepool_worker.serving.translation import FORESEEN, translated

logger = logging.getLogger("decodepool.http")

MAX_BODY_BYTES = 8 << 20
"""A body of the longest id list there may be, and twice the longest sensible text."""

OK = 200
FIRST_FAULT = 400
CLIENT_CLOSED = 499
"""What a request is counted as when its client left first; nobody gets this status."""

PUBLIC_PATHS = frozenset(route.path for route in ROUTES if route.public)
COUNTED_PATHS = PUBLIC_PATHS | {"/v1/capacity"}
"""What a worker for local clients answers to anybody: probes, metrics, and what it holds, which an operator counts."""


def build_application(service: Service, *, max_body_bytes: int = MAX_BODY_BYTES) -> web.Application:
    """Return the application that serves `service`."""
    app = web.Application(middlewares=[recorded, refusing, keyed], client_max_size=max_body_bytes)
    app[SERVICE] = service
    app[DOCUMENT] = document(ROUTES, release(), keys=bool(service.keys.keys))
    for route in ROUTES:
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            app.router.add_route(method, route.path, route.handler, expect_handler=expected)
    return app


async def expected(request: web.Request) -> web.StreamResponse | None:
    """Tell a client that asks first to go on, or refuse what else it expects."""
    expectation = request.headers["Expect"]
    if request.version < HttpVersion11:
        return None
    if expectation.lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # no part of the answer
        return None
    return _refusal(request, ApiError("expectation_failed", f"Expect: {expectation[:40]!r} is not 100-continue"))


@web.middleware
async def recorded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count and log the request, whatever becomes of it, and tell its connection when it begins and ends."""
    began, status = time.perf_counter(), CLIENT_CLOSED
    connection = request.protocol
    assert isinstance(connection, Connection)
    connection.begin()
    try:
        response = await handler(request)
        status = response.status
        return response
    except asyncio.CancelledError:
        status = OK if request.get(ANSWERED) else CLIENT_CLOSED
        raise
    finally:
        connection.end()
        _record(request, status, time.perf_counter() - began)


@web.middleware
async def refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every fault as OpenAI's error object. A stream that has begun tells its own faults."""
    try:
        return await handler(request)
    except ApiError as error:
        fault = error
    except FORESEEN as error:
        fault = translated(error)
    except web.HTTPMethodNotAllowed as error:
        message = f"{request.method} is not a method of {request.path}: use {', '.join(sorted(error.allowed_methods))}"
        return _refusal(request, ApiError("method_not_allowed", message), {"Allow": error.headers["Allow"]})
    except web.HTTPNotFound:
        fault = ApiError("unknown_route", f"there is no {request.path[:200]}: see /openapi.json")
    except web.HTTPException:
        raise
    except ConnectionError:
        raise
    except Exception:
        logger.exception("%s %s failed", request.method, _pattern(request))
        fault = ApiError("internal_error", "the worker failed to answer; its log says why")
    return _refusal(request, fault)


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


def _refusal(request: web.Request, fault: ApiError, headers: dict[str, str] | None = None) -> web.Response:
    service_of(request).metrics.refused.labels(fault.code).inc()
    return json_answer(fault.body(), fault.status, {**fault.headers(), **(headers or {})})


def _record(request: web.Request, status: int, seconds: float) -> None:
    """Count and log by the route's pattern: guesses would each be a series of their own, and ids are secrets."""
    metrics, route = service_of(request).metrics, _pattern(request)
    metrics.requests.labels(request.method, route, str(status)).inc()
    if status == CLIENT_CLOSED:
        metrics.disconnects.inc()
    fields = {"method": request.method, "route": route, "status": status, "seconds": round(seconds, 4)}
    level = logging.INFO if status >= FIRST_FAULT else logging.DEBUG  # what succeeds is in the metrics
    logger.log(level, "%s %s %s", request.method, route, status, extra={"fields": fields})


def _pattern(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource else "unknown"
