"""schemathesis against the document that the worker itself gives: no 5xx, and answers as the document says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from tests.serving.live_server import Live, live_worker

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


@pytest.fixture(scope="module")
def worker() -> Iterator[Live]:
    with live_worker(context_tokens=64) as live:
        yield live


@pytest.fixture
def document(worker: Live) -> Any:
    worker.close_all()
    return schemathesis.openapi.from_url(worker.url + "/openapi.json")


schema = schemathesis.pytest.from_fixture("document")


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_whatever_is_sent_the_answer_is_documented(case: Any, worker: Live) -> None:
    if "id" in (case.path_parameters or {}) and len(case.path_parameters["id"]) % 2:
        case.path_parameters["id"] = some_session(worker)
    case.call_and_validate(checks=CHECKS)


def some_session(worker: Live) -> str:
    worker.close_all()
    return worker.create("A B C", temperature=0)
