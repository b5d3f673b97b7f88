"""What live pages show of what they are told: Node runs their scripts over elements that keep what they are given."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from decodepool_web.live_page import live_text

DRAW = Path(__file__).with_name("draw.mjs")
Answer = tuple[int, str]
"""A status and a body."""

LOST = None
NO_KEY = (401, "")

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node")

SESSION = {
    "id": "s-a",
    "parent": "s-b",
    "state": "decoding",
    "length": 90,
    "evaluated": 90,
    "context_tokens": 4096,
    "age_seconds": 61.0,
}
MEMORY = {
    "process_bytes": 1 << 30,
    "weight_bytes": 8 << 30,
    "workspace_bytes": 1 << 20,
    "reserve_used_bytes": 512,
    "reserve_free_bytes": 0,
    "cache_used_bytes": 0,
    "cache_free_bytes": 0,
    "planned_bytes": 9 << 30,
    "resident_bytes": 5 << 30,
}
OF_A_MODEL = {"model": "m", "architecture": "llama", "context_tokens": 4096, "system_fingerprint": "fp"}


def worker(rate: float) -> dict[str, Any]:
    """What a worker tells of itself."""
    point = {"tokens_per_second": rate, "step_ms": 2.25, "rows": 1.0}
    sessions = {"capacity": 1000, "list": [SESSION]}
    told = {"phase": "ready", "sessions": sessions, "memory": MEMORY, "pages": "hsf", "history": [point]}
    return {**OF_A_MODEL, **told}


def pool(rate: float) -> dict[str, Any]:
    """What a gateway tells of a pool of one worker."""
    sessions = {"capacity": 1000, "active": 1, "list": [SESSION]}
    figures = {"tokens_per_second": [rate], "step_ms": 2.25, "rows": 1.0}
    one = {"name": "p-worker-0", "state": "ready", "sessions": sessions, "memory": MEMORY, **OF_A_MODEL, **figures}
    return {"pool": "p", "queued": 0, "workers": [one], "history": [{"sessions": 1, "queued": 0}]}


PAGES: dict[str, tuple[str, str, Callable[[float], dict[str, Any]]]] = {
    "worker": ("decodepool_worker.serving", "live.js", worker),
    "pool": ("decodepool_gateway", "pool.js", pool),
}


@dataclass(frozen=True)
class Page:
    """A page's script, and what its server tells at a rate."""

    script: Path
    told: Callable[[float], dict[str, Any]]

    def heard(self, rate: float) -> Answer:
        """Return the server's answer at a rate."""
        return 200, json.dumps(self.told(rate))

    def shown(self, *answers: Answer | None) -> tuple[list[dict[str, Any]], str]:
        """Return what the page shows after each answer, and what its console says."""
        assert NODE is not None
        command, words = [NODE, str(DRAW), str(self.script)], json.dumps(answers)
        done = subprocess.run(command, input=words, capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout), done.stderr


@pytest.fixture(params=list(PAGES))
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Page:
    return page_of(request.param, tmp_path)


def page_of(name: str, folder: Path) -> Page:
    package, script, told = PAGES[name]
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "page.js").write_text(live_text("decodepool_web", "page.js"))
    (folder / script).write_text(live_text(package, script))
    return Page(folder / script, told)


@pytest.mark.parametrize(
    ("rate", "text"), [(0, "idle"), (7.04, "7.0 tok/s"), (99.96, "100 tok/s"), (9343.4, "9,343 tok/s")]
)
def test_a_rate_has_one_digit_behind_the_point_and_none_from_100_on(page: Page, rate: float, text: str) -> None:
    (now,), _ = page.shown(page.heard(rate))
    assert now["tokens"] == text


def test_memory_and_sessions_are_shown(page: Page) -> None:
    (now,), _ = page.shown(page.heard(1))
    assert now["legend"].startswith("1.00 GiBprocess8.00 GiBweights1.00 MiBworkspace512 Bheld by sessions")
    assert "9.00 GiB planned" in now.get("memory", "") + now["memory-note"]
    assert now["session-count"] == "1 of 1,000"
    assert now["sessions"].startswith("s-a\u2026fork of s-b\u2026")
    assert "90 / 4,096\u20131 min" in now["sessions"]
    assert now["sessions-note"] == "ids are cut short: a whole one is its session's key"


def test_a_sessions_rate_is_shown(page: Page) -> None:
    later = page.heard(1)[1].replace('"length": 90', '"length": 1290').replace("61.0", "62.0")
    (_, now), _ = page.shown(page.heard(1), (200, later))
    assert "1,200 tok/s" in now["sessions"]


@pytest.mark.parametrize("answer", [LOST, (502, ""), (200, "half a bo")], ids=["silent", "502", "no JSON"])
def test_a_server_that_does_not_answer_is_lost_until_it_does(page: Page, answer: Answer | None) -> None:
    (_, lost, found), _ = page.shown(page.heard(1), answer, page.heard(1))
    assert (lost["phase"], lost["isStale"]) == ("lost", True)
    assert lost["notice"].endswith("does not answer. Asking again every second.")
    assert (found["phase"] != "lost", found["isStale"]) == (True, False)


def test_what_a_page_cannot_draw_is_its_own_fault(page: Page) -> None:
    broken = 200, page.heard(1)[1].replace("memory", "m")
    (_, now, found), errors = page.shown(page.heard(1), broken, page.heard(1))
    assert (now["phase"], now["isStale"]) == ("not drawn", True)
    assert "the fault is its own" in now["notice"]
    assert "TypeError" in errors
    assert not found["isStale"]


def test_a_page_without_a_key_is_locked(page: Page) -> None:
    (now, opened), _ = page.shown(NO_KEY, page.heard(1))
    assert (now["phase"], now["isStale"]) == ("locked", True)
    assert not opened["isStale"]


def test_a_locked_page_asks_again_only_when_a_key_is_given(page: Page) -> None:
    shown, _ = page.shown(NO_KEY, NO_KEY, page.heard(1), page.heard(1))
    assert [each["waitsFor"] for each in shown] == ["key", "key", "time", "time"]


def test_a_failed_worker_shows_what_was(tmp_path: Path) -> None:
    page = page_of("worker", tmp_path)
    failed = 200, page.heard(1)[1].replace('"phase": "ready"', '"phase": "failed"')
    (before, now), _ = page.shown(page.heard(1), failed)
    assert not before["isStale"]
    assert (now["phase"], now["isStale"]) == ("failed", True)
