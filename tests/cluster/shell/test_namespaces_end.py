"""Namespaces end while an operator of the whole cluster looks at their pools: that is nobody's error."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.cluster.shell.conftest import Operators
from tests.cluster.shell.plane import Plane, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NAMESPACES_EACH = 4


def test_the_end_of_a_namespace_is_no_error(plane: Plane, model: str, operators: Operators) -> None:
    settings = {"NAMESPACES": "", "LEASE": "namespaces-end"}
    with ExitStack() as before, ExitStack() as meanwhile:
        spaces = [
            stack.enter_context(plane.namespace()) for stack in (before, meanwhile) for _ in range(NAMESPACES_EACH)
        ]
        first = operators(**settings)
        first.start()
        for space in spaces:
            plane.make(space, "chat", model, sessionsPerWorker=4, replicas=2)
        until(lambda: all(plane.follows(space, "chat", 4) for space in spaces), "the pools to be planned")
        first.kill()
        before.close()
        operator = operators(**settings)
        operator.start()
        meanwhile.close()
        until(lambda: not plane.namespaces() & set(spaces), "the namespaces to have ended", 120)
    assert operator.metrics("decodepool_operator_errors_total") == {}, operator.log.read_text()[-4000:]
