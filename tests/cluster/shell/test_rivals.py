"""Two operators over the same pools, however they came: they say so."""

from __future__ import annotations

import pytest
from decodepool_cluster.linux import wait_until

from tests.cluster.shell.conftest import Operators
from tests.cluster.shell.plane import Plane

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

RIVALS = "decodepool_operator_rivals"
QUICK = {"SCOPE_SECONDS": "2"}


def test_operators_that_share_a_namespace_tell_of_each_other(plane: Plane, space: str, operators: Operators) -> None:
    with plane.namespace() as theirs, plane.namespace() as shared:
        first = operators(NAMESPACES=f"{space},{shared}", LEASE="first", **QUICK)
        second = operators(NAMESPACES=f"{theirs},{shared}", LEASE="second", OPERATOR_NAMESPACE=theirs, **QUICK)
        first.start()
        second.start()
        wait_until(lambda: first.metric(RIVALS) == second.metric(RIVALS) == 1, "both to tell")
        [told] = {tuple(each["leases"]) for each in first.records() if "leases" in each}
        assert told == (f"{shared}/second",)
        second.kill()
        wait_until(lambda: first.metric(RIVALS) == 0, "it to be alone")


def test_one_that_serves_all_finds_one_that_serves_a_namespace(plane: Plane, space: str, operators: Operators) -> None:
    with plane.namespace() as own:
        everywhere = operators(NAMESPACES="", LEASE="everywhere", OPERATOR_NAMESPACE=own, **QUICK)
        somewhere = operators(LEASE="somewhere", **QUICK)
        everywhere.start()
        somewhere.start()
        wait_until(lambda: everywhere.metric(RIVALS) == 1, "the one of the whole cluster to tell")
        somewhere.kill()
        wait_until(lambda: everywhere.metric(RIVALS) == 0, "it to be alone")
