"""Two real nodes: one is drained, one loses its power; the pool serves on, comes back whole, and says what is true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import wait_until

from tests.cluster.pool.conftest import Pools
from tests.cluster.pool.pools import Object, Pool, condition_in, host_path, seen

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]

SPREAD: Object = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "worker"}},
}
PROMPT = [5, 17, 40, 3]


@pytest.fixture(scope="module")
def two_nodes(cluster: Cluster, tiny_models: list[Path]) -> Iterator[Cluster]:
    """A second node, for this module alone, with the same model on it."""
    cluster.add_nodes(2)
    for model in tiny_models:
        cluster.put_model(model)
    yield cluster
    cluster.remove_node("node-2")


@pytest.fixture(scope="module")
def made(two_nodes: Cluster, pools: Pools) -> Pool:
    drain = {"timeoutSeconds": 3}
    template = {"topologySpreadConstraints": [SPREAD]}
    return pools("spread").make(host_path("tiny-1.gguf"), replicas=2, drain=drain, template=template)


@pytest.fixture
def spread(made: Pool) -> Pool:
    return made.wait_ready()


def nodes_of(pool: Pool) -> list[str]:
    """Where its workers are that do not end."""
    return sorted(pod["spec"].get("nodeName", "") for pod in pool.pods() if "deletionTimestamp" not in pod["metadata"])


def greedy(pool: Pool) -> list[int]:
    client = pool.endpoint()
    session = client.post("/v1/sessions", {"tokens": PROMPT}, 201)["id"]
    tokens: list[int] = client.decode(session, max_tokens=8, ignore_eos=True)["tokens"]
    client.call("DELETE", f"/v1/sessions/{session}")
    return tokens


def check_counts(versions: list[Object], least_available: int) -> None:
    """At no moment were fewer workers available, or was a pool ready that had not all of them."""
    for version in versions:
        status = version["status"]
        available = condition_in(status, "WorkersAvailable")
        if least_available:
            assert available["status"] == "True", available
        if condition_in(status, "Ready")["status"] == "True":
            assert status["readyReplicas"] == status["replicas"] == 2


def test_workers_are_on_both_nodes_and_answer_alike(spread: Pool) -> None:
    assert nodes_of(spread) == ["node-1", "node-2"]
    sessions = [worker.post("/v1/sessions", {"tokens": PROMPT}, 201) for worker in map(spread.worker, spread.pods())]
    assert sessions[0]["system_fingerprint"] == sessions[1]["system_fingerprint"]
    for worker in map(spread.worker, spread.pods()):
        worker.close_all()


def test_a_drained_node_is_left_by_its_workers_while_the_others_serve(spread: Pool, two_nodes: Cluster) -> None:
    before = greedy(spread)
    with seen(spread) as versions:
        two_nodes.kubectl("drain", "node-2", "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=90s")
        assert greedy(spread) == before
        wait_until(lambda: nodes_of(spread) == ["node-1", "node-1"], "both workers on the other node", 60)
        spread.wait_ready()
    check_counts(versions, least_available=1)
    two_nodes.kubectl("uncordon", "node-2")


def test_a_node_that_loses_power_is_told_of_and_its_worker_is_made_elsewhere(spread: Pool, two_nodes: Cluster) -> None:
    two_nodes.kubectl("cordon", "node-1")
    two_nodes.kubectl("delete", "pod", "-n", spread.namespace, spread.pods()[0]["metadata"]["name"])
    wait_until(lambda: nodes_of(spread) == ["node-1", "node-2"], "a worker on each node", 60)
    spread.wait_ready()
    two_nodes.kubectl("uncordon", "node-1")
    before = greedy(spread)
    with seen(spread) as versions:
        two_nodes.kill("node-2")
        spread.wait_condition("Ready", "NodeNotReady", 60)
        assert greedy(spread) == before
        wait_until(lambda: nodes_of(spread) == ["node-1", "node-1"], "the lost worker to be made elsewhere", 60)
        spread.wait_ready()
        assert spread.condition("Draining")["status"] == "True", "the lost pod is there until its node says otherwise"
    check_counts(versions, least_available=1)
    two_nodes.revive("node-2")
    wait_until(lambda: len(spread.pods()) == 2, "the lost pod to go once its node is back", 120)
    spread.wait_ready()
    wait_until(lambda: spread.condition("Draining")["status"] == "False", "nothing to drain")
