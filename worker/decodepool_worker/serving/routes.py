"""A route as data: what it is called, takes, answers and may refuse. The application and `/openapi.json` read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from decodepool_worker.serving.fields import Answer, Body

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
BODY = ("invalid_value", "body_too_large")


@dataclass(frozen=True)
class Route:
    """One endpoint. Without an `answer` model it answers `content_type` as it is; `public` ones ask for no API key."""

    method: str
    path: str
    handler: Handler
    answer: type[Answer] | None = None
    body: type[Body] | None = None
    status: int = 200
    streams: bool = False
    content_type: str = "application/json"
    refusals: tuple[str, ...] = ()
    public: bool = False

    @property
    def name(self) -> str:
        """What generated clients call it."""
        return getattr(self.handler, "__name__", self.path)

    @property
    def summary(self) -> str:
        """Its handler's docstring."""
        return " ".join((self.handler.__doc__ or "").split())


def get(path: str, handler: Handler, answer: type[Answer] | None, *refusals: str, **more: Any) -> Route:
    """Return a route that reads."""
    return Route("GET", path, handler, answer, refusals=refusals, **more)


def post(
    path: str, handler: Handler, body: type[Body] | None, answer: type[Answer] | None, *refusals: str, **more: Any
) -> Route:
    """Return a route that takes a body, if it has one, and may refuse it."""
    return Route("POST", path, handler, answer, body, refusals=(*(BODY if body else ()), *refusals), **more)
