from __future__ import annotations

import logging
from typing import Any

import pytest
from decodepool_sizing.log_lines import fields_of
from decodepool_web.logs import Plain

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


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"prompt": "x", "tokens": [1]}, {"code": "invalid_value"}),
        ({}, {"code": "missing_field", "param": "tokens"}),
        ({"prompt": "x", "secret": 1}, {"code": "unknown_field", "param": "secret"}),
        ({"prompt": "x", "temperature": "secret"}, {"code": "invalid_value", "param": "temperature"}),
        ({"prompt": "x", "logit_bias": {"987654": 1}}, {"code": "invalid_value", "param": "logit_bias"}),
        ({"prompt": "x", "a secret\nline": 1}, {"code": "unknown_field"}),
    ],
    ids=["no field", "missing", "unknown", "wrong", "keyed by value", "no name"],
)
def test_a_refusals_line_has_its_code_and_field_and_no_value(
    live: Live, caplog: pytest.LogCaptureFixture, body: dict[str, Any], reason: dict[str, str]
) -> None:
    caplog.set_level(logging.INFO, "decodepool.http")
    live.post("/v1/sessions", body, 400)
    live.until(lambda: bool(caplog.records))
    (line,) = caplog.records
    fields = fields_of(line)
    assert {name: fields[name] for name in ("code", "param") if name in fields} == reason
    told = "".join(f" {name}={value}" for name, value in reason.items())
    assert Plain().format(line).endswith(f"POST /v1/sessions 400 seconds={fields['seconds']}{told}")


def test_a_method_that_a_route_has_not_is_a_reason(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "decodepool.http")
    assert live.call("PUT", "/v1/sessions").status == 405
    live.until(lambda: bool(caplog.records))
    assert fields_of(caplog.records[0])["code"] == "method_not_allowed"
