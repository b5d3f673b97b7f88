"""The route as data: what it is called, takes, answers and may refuse. The application and `/openapi.json` both read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from decodepool_worker.serving.fields import Answer, Body

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Route:
    """One endpoint. `answer` None is a body that is no JSON, of `content_type`."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: type[Answer] | None = None
    body: type[Body] | None = None
    status: int = 200
    streams: bool = False
    content_type: str = "application/json"
    refusals: tuple[str, ...] = ()
    public: bool = False
    tag: str = "worker"

    @property
    def operation_id(self) -> str:
        """A name for generated clients."""
        return self.handler.__name__


SESSION_FAULTS = ("unknown_session", "session_gone")
SERVING_FAULTS = ("loading", "draining", "engine_failed")
BODY_FAULTS = ("invalid_value", "body_too_large")
