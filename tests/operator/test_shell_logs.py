from __future__ import annotations

import logging

import pytest
from decodepool_operator.shell.logs import RETRIES_SECONDS, Retries


def record(message: str, name: str = "decodepool_operator") -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "", 0, message, None, None)


RETRY = record("Request attempt #1/12 failed; will retry: GET https://x", "kopf._cogs.clients.watching")


def test_an_api_server_that_is_away_is_a_line_a_minute() -> None:
    now = 0.0
    filtering = Retries(lambda: now)
    passed = 0
    for _ in range(600):
        passed += bool(filtering.filter(RETRY))
        now += 0.5
    assert passed == pytest.approx(300 / RETRIES_SECONDS, abs=1)


@pytest.mark.parametrize(
    "other",
    [
        record("Request attempt #12/12 failed; escalating: GET https://x", "kopf._cogs.clients.watching"),
        record("we will retry it"),
    ],
    ids=["the last try", "our own words"],
)
def test_nothing_else_is_left_out(other: logging.LogRecord) -> None:
    filtering = Retries(lambda: 0.0)
    assert filtering.filter(RETRY)
    assert all(filtering.filter(other) for _ in range(5))
