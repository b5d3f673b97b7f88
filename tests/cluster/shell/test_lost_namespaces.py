"""One of the namespaces that an operator serves is lost: the others are served on, and it is again once it is back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from decodepool_cluster.linux import wait_until

from tests.cluster.shell.conftest import Operators
from tests.cluster.shell.plane import OperatorProcess, Plane, until
from tests.cluster.shell.test_operator_rights import LEASE, OWN, install_rights, kubeconfig_of_operator, remove_rights

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

UNSERVED = "decodepool_operator_unserved_namespaces"
LOST = "lost"


@pytest.fixture
def operator(plane: Plane, space: str, operators: Operators, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator of the test's namespace and of another, by the chart's rights in each."""
    give_rights(plane, space)
    given = {"NAMESPACES": f"{LOST},{space}", "OPERATOR_NAMESPACE": OWN, "SCOPE_SECONDS": "1", "LEASE": LEASE}
    made = operators(kubeconfig_of_operator(plane, tmp_path), **given)
    made.start()
    yield made
    remove_rights(plane)
    delete_namespace(plane)


def give_rights(plane: Plane, space: str) -> None:
    if LOST not in plane.namespaces():
        plane.cluster.kubectl("create", "namespace", LOST)
    install_rights(plane, f"--set=watchNamespaces={{{LOST},{space}}},rbac.readNodes=false")


def delete_namespace(plane: Plane) -> None:
    plane.cluster.kubectl("delete", "namespace", LOST, "--ignore-not-found", "--timeout=60s")


def take_role(plane: Plane) -> None:
    plane.cluster.kubectl("delete", "role", LEASE, "-n", LOST)


@pytest.mark.parametrize("lose", [delete_namespace, take_role], ids=["deleted", "without its Role"])
def test_the_others_are_served_on_and_it_is_again_once_it_is_back(
    lose: Callable[[Plane], None], plane: Plane, space: str, model: str, operator: OperatorProcess
) -> None:
    plane.make(space, "chat", model, sessionsPerWorker=4)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    lose(plane)
    wait_until(lambda: operator.probe("/readyz") == 200 and operator.metric(UNSERVED) == 1, "the loss to be seen", 60)
    plane.set_spec(space, "chat", sessionsPerWorker=5)
    until(lambda: plane.follows(space, "chat", 5), "a change in the other namespace to be followed")
    assert operator.stop() == 0
    operator.start()
    plane.set_spec(space, "chat", sessionsPerWorker=6)
    until(lambda: plane.follows(space, "chat", 6), "a change to be followed by an operator that never had it")
    give_rights(plane, space)
    wait_until(lambda: operator.probe("/readyz") == 200 and operator.metric(UNSERVED) == 0, "its return", 60)
    plane.make(LOST, "chat", model, sessionsPerWorker=7)
    until(lambda: plane.follows(LOST, "chat", 7), "a pool in it to be planned")
    plane.set_spec(space, "chat", sessionsPerWorker=8)
    until(lambda: plane.follows(space, "chat", 8), "a change in the other namespace to be followed")
    assert operator.pid is not None, "by the same process"
