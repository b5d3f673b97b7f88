"""The live page: three files and one JSON answer that they draw once a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from aiohttp import web
from decodepool_sizing.session_ids import random_of
from decodepool_web.answers import json_answer
from decodepool_web.live_page import live_file

from decodepool_worker.serving.service import Served, Service, service_of
from decodepool_worker.sessions.pages import PageCounts, PageUse
from decodepool_worker.sessions.session import SessionInfo

SHOWN_PAGES = 8192
"""Physical pages drawn one by one; of a larger pool the page shows the sums alone."""

SHOWN_ID_CHARACTERS = 6
"""Of an id's 22 random ones: the 92 bits that stay unsaid are beyond guessing."""


async def live_page(request: web.Request) -> web.Response:  # noqa: ARG001  a handler takes one
    """The live page."""
    return live_file("decodepool_worker.serving", "index.html", "text/html")


async def live_style(request: web.Request) -> web.Response:  # noqa: ARG001  a handler takes one
    """The live page's style."""
    return live_file("decodepool_worker.serving", "live.css", "text/css")


async def live_script(request: web.Request) -> web.Response:  # noqa: ARG001  a handler takes one
    """The live page's script."""
    return live_file("decodepool_worker.serving", "live.js", "text/javascript")


async def live(request: web.Request) -> web.Response:
    """What the live page draws, once a second."""
    service = service_of(request)
    phase = "failed" if service.fault else service.phase.value
    served = service.loaded()
    return json_answer({"phase": phase, **(await _present(service, served) if served and not service.fault else {})})


async def _present(service: Service, served: Served) -> dict[str, Any]:
    infos, pages = await served.worker.infos(), served.worker.stats().pages
    return {
        "model": served.name,
        "architecture": served.architecture,
        "context_tokens": served.context_tokens,
        "system_fingerprint": served.fingerprint,
        "sessions": {"capacity": served.session_capacity, "list": [_session(info) for info in infos]},
        "memory": memory_map(served, pages),
        "pages": page_letters(await served.worker.page_uses()) if pages.total <= SHOWN_PAGES else None,
        "history": [asdict(point) for point in service.history.points],
    }


def memory_map(served: Served, pages: PageCounts) -> dict[str, int | None]:
    """Split reserve and cache by use, in proportion to pages: held by sessions, promised to them, kept for reuse."""
    planned = served.planned
    reserve, cache = planned["reserve_bytes"], planned["cache_bytes"]
    loaded = planned["weight_bytes"] + planned["workspace_bytes"] + reserve + cache
    used = reserve * pages.used // pages.reserve
    kept = min(cache, (reserve + cache) * pages.kept // pages.total)
    return {
        "process_bytes": planned["resident_bytes"] - loaded,
        "weight_bytes": planned["weight_bytes"],
        "workspace_bytes": planned["workspace_bytes"],
        "reserve_used_bytes": used,
        "reserve_free_bytes": reserve - used,
        "cache_used_bytes": kept,
        "cache_free_bytes": cache - kept,
        "planned_bytes": planned["resident_bytes"],
        "resident_bytes": served.measure().get("resident_bytes"),
    }


def page_letters(uses: Sequence[PageUse]) -> str:
    """Return one letter a page."""
    return "".join([use.value[0] for use in uses])


def short_id(session_id: str) -> str:
    """Return what tells sessions apart on the page, and lets nobody use them."""
    return session_id.removesuffix(random_of(session_id)[SHOWN_ID_CHARACTERS:])


def _session(info: SessionInfo) -> dict[str, Any]:
    return {
        "id": short_id(info.id),
        "parent": None if info.parent is None else short_id(info.parent),
        "state": info.state.value,
        "length": info.length,
        "evaluated": info.evaluated_count,
        "context_tokens": info.context_tokens,
        "age_seconds": info.age_seconds,
    }
