"""schemathesis against the document that the worker itself gives: no 5xx, and answers as the document says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from decodepool_worker.serving.routes import ROUTES, DocumentedRoute
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks

from tests.serving.live_server import Live, live_worker

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
EXAMPLES = 60
"""An endpoint and a mode: some twenty seconds for all of it."""


HOLD = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def worker() -> Iterator[Live]:
    with live_worker(context_tokens=64) as live:
        yield live


CASES = [(GenerationMode.POSITIVE, route) for route in ROUTES]
CASES += [(GenerationMode.NEGATIVE, route) for route in ROUTES if route.body]
"""Where there is no body, there is nothing to get wrong."""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "route"), CASES, ids=[f"{mode.value} {r.method} {r.path}" for mode, r in CASES])
def test_whatever_is_sent_the_answer_is_documented(worker: Live, mode: GenerationMode, route: DocumentedRoute) -> None:
    schema = schemathesis.openapi.from_dict(worker.get("/openapi.json"))
    schema.config.update(base_url=worker.url)
    operation = schema[route.path][route.method]

    @HOLD
    @given(case=operation.as_strategy(generation_mode=mode))
    def hold(case: Any) -> None:
        if "{id}" in route.path and mode is GenerationMode.POSITIVE:
            worker.close_all()
            case.path_parameters["id"] = worker.create("A B C", temperature=0)
        expected = [*CHECKS, *([checks.negative_data_rejection] if mode is GenerationMode.NEGATIVE else [])]
        case.call_and_validate(checks=expected)

    hold()
    worker.close_all()
    assert worker.get("/healthz")["status"] == "ok"
