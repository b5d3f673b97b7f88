from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from decodepool_sizing.log_lines import JsonLines, worth_a_line


def record(message: str, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("decodepool.http", logging.INFO, __file__, 1, message, None, None)
    made.fields = fields
    return made


def test_a_record_is_one_json_object_on_one_line() -> None:
    line = JsonLines().format(record("two\nlines", route="/v1/sessions", status=201))
    assert "\n" not in line
    read = json.loads(line)
    told = (read["message"], read["route"], read["status"], read["level"], read["logger"])
    assert told == ("two\nlines", "/v1/sessions", 201, "info", "decodepool.http")


def test_a_record_without_fields_is_a_line_too() -> None:
    bare = logging.LogRecord("aiohttp", logging.ERROR, __file__, 1, "%s failed", ("x",), None)
    assert json.loads(JsonLines().format(bare))["message"] == "x failed"
    assert worth_a_line(bare)


def test_a_traceback_is_a_field_of_its_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    assert "ValueError: broken" in json.loads(JsonLines().format(made))["traceback"]


@pytest.mark.parametrize(
    ("route", "status", "is_worth_it"),
    [
        ("/healthz", 200, False),
        ("/healthz", 503, True),
        ("/readyz", 503, False),
        ("/v1/sessions", 200, True),
        ("/v1/capacity", 503, False),
        ("/v1/capacity", 401, True),
        ("/v1/live", 401, False),
        ("/v1/live", 499, False),
        ("/v1/live", 500, True),
    ],
)
def test_probes_are_logged_when_they_matter(route: str, status: int, is_worth_it: bool) -> None:
    assert worth_a_line(record("x", route=route, status=status)) is is_worth_it
