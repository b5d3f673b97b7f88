"""The pool's live page, and what it is told."""

from __future__ import annotations

import re
from typing import Any

import pytest
from decodepool_gateway.metrics import STATES
from decodepool_web.live_page import live_text

from tests.gateway.processes import PoolProcess, until

STYLE = live_text("decodepool_web", "page.css") + live_text("decodepool_gateway", "pool.css")


def test_the_page_is_told_of_every_worker(pool: PoolProcess) -> None:
    made = [pool.create() for _ in range(3)]
    told = once(pool, lambda live: sum(worker["sessions"]["active"] for worker in live["workers"]) == 3)
    assert (told["pool"], told["queued"]) == ("bytes", 0)
    assert [(worker["name"], worker["state"]) for worker in told["workers"]] == [("a", "ready"), ("b", "ready")]
    for worker in told["workers"]:
        assert worker["sessions"]["capacity"] == 4
        assert worker["memory"]["planned_bytes"] == 278_000_000
        assert all(rate >= 0 for rate in worker["tokens_per_second"])
    assert sorted(ids(told)) == sorted(name[: name.index("-", 2) + 7] for name in made)
    until(lambda: pool.get("/v1/live")["history"][-1] == {"sessions": 3, "queued": 0}, 5)


def test_the_ids_that_it_shows_open_nothing(pool: PoolProcess) -> None:
    pool.create()
    told = once(pool, lambda live: len(ids(live)) == 1)
    assert pool.get(f"/v1/sessions/{ids(told)[0]}", 404)["error"]["code"] == "unknown_session"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/live/page.css", "text/css"),
        ("/live/page.js", "text/javascript"),
        ("/live/pool.css", "text/css"),
        ("/live/pool.js", "text/javascript"),
    ],
)
def test_the_pages_files_allow_nothing_from_elsewhere(pool: PoolProcess, path: str, kind: str) -> None:
    answer = pool.call("GET", path)
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith(kind)
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")


def test_script_and_style_speak_of_every_state() -> None:
    assert set(STATES) <= set(re.findall(r"\w+", live_text("decodepool_gateway", "pool.js")))
    assert all(f".{state}" in STYLE for state in STATES)


def test_what_a_pill_says_is_no_class_of_anything_else() -> None:
    pills = set(re.findall(r"\.pill\.([\w-]+)", STYLE))
    assert {"ready", "empty"} <= pills
    assert not pills & set(re.findall(r"^\.([\w-]+) \{", STYLE, re.M))


def ids(live: Any) -> list[str]:
    """Of the sessions that are shown."""
    return [session["id"] for worker in live["workers"] for session in worker["sessions"]["list"]]


def once(pool: PoolProcess, claim: Any) -> Any:
    """What the page is told, as soon as a claim holds of it."""
    told: list[Any] = []

    def holds() -> bool:
        told.append(pool.get("/v1/live"))
        return bool(claim(told[-1]))

    until(holds, 5)
    return told[-1]
