"""What every request passes: the middlewares of both servers, outermost first.

`recorded` counts and logs, `refusing` turns faults into OpenAI's error object.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from aiohttp import HttpVersion11, web
from decodepool_sizing.api_errors import ApiError

from decodepool_web.connections import Connection
from decodepool_web.routes import Handler, Route
from decodepool_web.server_identity import identity_of

OK = 200
FIRST_FAULT = 400
CLIENT_CLOSED = 499
"""What a request is counted as when its client left first; nobody gets this status."""

ANSWERED = web.RequestKey("answered", bool)
"""Set on a request whose stream has come to its end."""


class Reason(NamedTuple):
    """Why a request was refused: a fault's code, and the field at fault where there is one."""

    code: str
    param: str | None = None


REASON = web.RequestKey("reason", Reason)
"""Set on a request that was refused, here or by whoever it was passed on to."""

FIELD = re.compile(r"\w{1,64}", re.ASCII)
"""Names of a body's fields that go into a line: a client may have made up any."""


def add_routes(app: web.Application, routes: Iterable[Route]) -> None:
    """Add a route table to an application; what can be read answers HEAD, too."""
    for route in routes:
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            app.router.add_route(method, route.path, route.handler, expect_handler=expected)


async def expected(request: web.Request) -> web.StreamResponse | None:
    """Tell a client that asks first to go on, or refuse what else it expects."""
    expectation = request.headers["Expect"]
    if request.version < HttpVersion11:
        return None
    if expectation.lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # no part of the answer
        return None
    fault = ApiError("expectation_failed", f"Expect: {expectation[:40]!r} is not 100-continue")
    return identity_of(request).refusal(fault)


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
    identity = identity_of(request)
    headers: dict[str, str] = {}
    try:
        return await handler(request)
    except ApiError as error:
        fault = error
    except web.HTTPMethodNotAllowed as error:
        message = f"{request.method} is not a method of {request.path}: use {', '.join(sorted(error.allowed_methods))}"
        fault, headers = ApiError("method_not_allowed", message), {"Allow": error.headers["Allow"]}
    except web.HTTPNotFound:
        fault = ApiError("unknown_route", f"there is no {request.path[:200]}: see /openapi.json")
    except (web.HTTPException, ConnectionError):
        raise
    except Exception:
        identity.logger.exception("%s %s failed", request.method, _pattern(request))
        fault = identity.internal_error()
    request[REASON] = Reason(fault.code, fault.param)
    return identity.refusal(fault, headers)


def _record(request: web.Request, status: int, seconds: float) -> None:
    """Count and log by the route's pattern: guesses would each be a series of their own, and ids are secrets."""
    identity, route = identity_of(request), _pattern(request)
    identity.counters.requests.labels(request.method, route, str(status)).inc()
    if status == CLIENT_CLOSED:
        identity.counters.disconnects.inc()
    fields = {"method": request.method, "route": route, "status": status, "seconds": round(seconds, 4)}
    fields |= _told(request.get(REASON))
    level = logging.INFO if status >= FIRST_FAULT else logging.DEBUG  # what succeeds is in the metrics
    identity.logger.log(level, "%s %s %s", request.method, route, status, extra={"fields": fields})


def _told(reason: Reason | None) -> dict[str, str]:
    """Return a refusal's reason as fields of its line. Of the param the body's field alone: what is below it may be a
    value, as the ids of `logit_bias` are.
    """
    if reason is None:
        return {}
    field = (reason.param or "").partition(".")[0]
    return {"code": reason.code, **({"param": field} if FIELD.fullmatch(field) else {})}


def _pattern(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource else "unknown"
