"""What tests of whole lives of pools ask of a cluster in memory."""

from __future__ import annotations

from decodepool_operator.planner.state import Object

from tests.operator.simulation import Cluster

TOO_LITTLE = {"type": "cpu", "memory": "64Mi"}


def ready(cluster: Cluster) -> tuple[str, str]:
    told = cluster.condition("Ready")
    return told["status"], told["reason"]


def names(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def rolls(spec: Object) -> None:
    spec.update(contextTokens=64)


def require(holds: bool, message: str) -> None:
    assert holds, message
