"""A row of a route table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Route:
    """One endpoint. `public` ones ask for no API key."""

    method: str
    path: str
    handler: Handler
    public: bool = field(default=False, kw_only=True)
