"""The pool's live page: three files and one JSON answer that they draw once a second."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from aiohttp import web

from decodepool_gateway.answers import json_answer
from decodepool_gateway.gateway import gateway_of

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


async def live_page(request: web.Request) -> web.StreamResponse:  # noqa: ARG001  a handler takes one
    """The live page."""
    return _file("index.html", "text/html")


async def live_style(request: web.Request) -> web.StreamResponse:  # noqa: ARG001  a handler takes one
    """The live page's style."""
    return _file("pool.css", "text/css")


async def live_script(request: web.Request) -> web.StreamResponse:  # noqa: ARG001  a handler takes one
    """The live page's script."""
    return _file("pool.js", "text/javascript")


async def live(request: web.Request) -> web.StreamResponse:
    """What the live page draws, once a second."""
    return json_answer(await gateway_of(request).live.told())


@cache
def _text(name: str) -> str:
    return files("decodepool_gateway").joinpath("live", name).read_text(encoding="utf-8")


def _file(name: str, content_type: str) -> web.Response:
    return web.Response(text=_text(name), content_type=content_type, headers=HEADERS)
