from __future__ import annotations

import logging

import pytest

from tests.serving.live_server import Live


def test_requests_are_logged_without_ids_and_keys(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    session = live.create("a secret")
    live.get(f"/v1/sessions/{session}")
    live.call("GET", f"/v1/sessions/{session}?key=secret", Authorization="Bearer secret")
    live.until(lambda: len([r for r in caplog.records if r.name == "decodepool.http"]) == 3)
    assert session not in caplog.text
    assert "secret" not in caplog.text
    assert "GET /v1/sessions/{id} 200" in caplog.text
