"""Files of a program's live page, in its folder `live/`."""

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


def live_file(package: str, name: str, content_type: str) -> web.Response:
    """Answer with a file of a package's folder `live/`."""
    return web.Response(text=live_text(package, name), content_type=content_type, headers=HEADERS)


@cache
def live_text(package: str, name: str) -> str:
    """Return a file of a package's folder `live/`."""
    return files(package).joinpath("live", name).read_text(encoding="utf-8")
