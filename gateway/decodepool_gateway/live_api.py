"""The pool's live page: three files and one JSON answer that they draw once a second."""

from __future__ import annotations

from aiohttp import web
from decodepool_web.answers import json_answer
from decodepool_web.live_page import live_file

from decodepool_gateway.gateway import gateway_of


async def live_page(request: web.Request) -> web.StreamResponse:  # noqa: ARG001  a handler takes one
    """The live page."""
    return live_file("decodepool_gateway", "index.html", "text/html")


async def live_style(request: web.Request) -> web.StreamResponse:  # noqa: ARG001  a handler takes one
    """The live page's style."""
    return live_file("decodepool_gateway", "pool.css", "text/css")


async def live_script(request: web.Request) -> web.StreamResponse:  # noqa: ARG001  a handler takes one
    """The live page's script."""
    return live_file("decodepool_gateway", "pool.js", "text/javascript")


async def live(request: web.Request) -> web.StreamResponse:
    """What the live page draws, once a second."""
    return json_answer(await gateway_of(request).live.told())
