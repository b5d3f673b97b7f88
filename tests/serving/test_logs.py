from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from decodepool_worker.serving.logs import JsonLines, worth_a_line

from tests.serving.live_server import Live


def record(message: str, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("decodepool.http", logging.INFO, __file__, 1, message, None, None)
    made.fields = fields
    return made


def test_a_json_line_is_one_object_with_the_records_fields() -> None:
    line = JsonLines().format(record("two\nlines", route="/v1/sessions", status=201))
    assert "\n" not in line
    read = json.loads(line)
    assert (read["message"], read["route"], read["status"], read["level"]) == (
        "two\nlines",
        "/v1/sessions",
        201,
        "info",
    )


def test_a_traceback_is_a_field_of_its_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    assert "ValueError: broken" in json.loads(JsonLines().format(made))["traceback"]


@pytest.mark.parametrize(
    ("route", "status", "is_worth_it"),
    [("/healthz", 200, False), ("/healthz", 503, True), ("/readyz", 503, False), ("/v1/sessions", 200, True)],
)
def test_probes_are_logged_when_they_matter(route: str, status: int, is_worth_it: bool) -> None:
    assert worth_a_line(record("x", route=route, status=status)) is is_worth_it


def test_requests_are_logged_without_ids_and_keys(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    session = live.create("a secret")
    live.get(f"/v1/sessions/{session}")
    live.call("GET", f"/v1/sessions/{session}?key=secret", Authorization="Bearer secret")
    live.until(lambda: len([r for r in caplog.records if r.name == "decodepool.http"]) == 3)
    assert session not in caplog.text
    assert "secret" not in caplog.text
    assert "GET /v1/sessions/{id} 200" in caplog.text
