"""Files of live pages: of a server's own folder `live/`, and of the one here, which both pages use."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from aiohttp import web

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


async def page_style(request: web.Request) -> web.Response:  # noqa: ARG001  a handler takes one
    """The style of every live page."""
    return live_file("decodepool_web", "page.css", "text/css")


async def page_script(request: web.Request) -> web.Response:  # noqa: ARG001  a handler takes one
    """The script of every live page."""
    return live_file("decodepool_web", "page.js", "text/javascript")


def live_file(package: str, name: str, content_type: str) -> web.Response:
    """Answer with a file of a package's folder `live/`."""
    return web.Response(text=live_text(package, name), content_type=content_type, headers=HEADERS)


@cache
def live_text(package: str, name: str) -> str:
    """Return a file of a package's folder `live/`."""
    return files(package).joinpath("live", name).read_text(encoding="utf-8")
