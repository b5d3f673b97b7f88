"""The operator is killed at any moment while real workers roll out: it converges, and no stream notices."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from decodepool_cluster import linux, product
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import wait_until
from decodepool_operator.api.kinds import CHILDREN, PODS

from tests.cluster.pool.callers import calling
from tests.cluster.pool.conftest import Pools
from tests.cluster.pool.pools import Object, Pool, host_path, seen
from tests.cluster.pool.test_pool_changes import check_truth

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]

MODEL = host_path("tiny-1.gguf")
OPERATOR = "app.kubernetes.io/component=operator"
MOST_WORKERS = 3
DEED_SECONDS, KILL_SECONDS = 2.5, 3.0
"""How long an operator's container runs at most before something is asked of it, and then before it is killed. It
needs some two seconds to start, so that it dies while it starts, while it lists and while it works.
"""


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(1500)])])
def test_an_operator_killed_at_any_moment_of_rollouts_leaves_what_is_wanted_and_no_stream_notices(
    cluster: Cluster, pools: Pools, kills: int
) -> None:
    """A13, a pod that goes cuts live sessions: workers are replaced and taken away under streams all the while."""
    chance = random.Random(kills)
    pool, brief = pools(f"chat-{kills}").make(MODEL, replicas=2), pools(f"brief-{kills}")
    pool.wait_ready()
    made, gateways = children(pool), uids(pool, "gateway")
    with calling(pool) as callers, seen(pool) as versions, counted_workers(pool) as counts:
        killed = ""
        for kill in range(kills):
            pod, killed = running_operator(cluster, killed)
            time.sleep(chance.uniform(0, DEED_SECONDS))
            ask_for_something(pool, brief, kill)
            time.sleep(chance.uniform(0, KILL_SECONDS))
            kill_operator(cluster, pod, killed)
        brief.delete()
        pool.change(replicas=2)
        generation = pool.get()["metadata"]["generation"]
        pool.wait_ready()
        wait_until(lambda: children(pool) == made, "no child too few, none too many, none of the pool that is gone", 90)
        wait_until(lambda: len(pods_in(pool)) == 2 + len(gateways), "exactly the wanted pods", 90)
    assert pool.status()["observedGeneration"] == generation
    assert uids(pool, "gateway") == gateways, "nothing was asked of the gateways"
    assert max(counts) <= MOST_WORKERS
    check_truth(versions)
    assert not callers.broken
    assert callers.whole > 2 * kills, callers
    pool.delete()
    wait_until(lambda: not children(pool) and not pods_in(pool), "nothing to be left", 90)


def ask_for_something(pool: Pool, brief: Pool, turn: int) -> None:
    """Other contexts, more or fewer workers, a pool that comes or goes: each is some seconds of work for workers."""
    match turn % 6:
        case 0:
            pool.change(contextTokens=2048)
        case 1:
            pool.change(replicas=MOST_WORKERS)
        case 2:
            brief.make(MODEL)
        case 3:
            pool.change(contextTokens=1024)
        case 4:
            pool.change(replicas=2)
        case 5:
            brief.delete()


def running_operator(cluster: Cluster, killed: str) -> tuple[Object, str]:
    """Wait for an operator's container other than the one killed last; return its pod, and its id."""
    found: list[tuple[Object, str]] = []

    def is_there() -> bool:
        found.extend(
            (pod, status["containerID"])
            for pod in cluster.items("pods", product.SYSTEM, OPERATOR)
            for status in pod["status"].get("containerStatuses", ())
            if "running" in status["state"] and status["containerID"] != killed
        )
        return bool(found)

    wait_until(is_there, "an operator to run", 60, 0.05)
    return found[0]


def kill_operator(cluster: Cluster, pod: Object, container: str) -> None:
    """Kill its process as a loss of power does. The first time the kubelet starts it anew, the second its pod goes too:

    the kubelet would wait longer after each.
    """
    pids = linux.processes_in(cluster.cgroup, container.rpartition("/")[2])
    assert pids, "the operator ended by itself"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    if pod["status"]["containerStatuses"][0]["restartCount"]:
        cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", product.SYSTEM, "--grace-period=0", "--force")


def children(pool: Pool) -> dict[tuple[str, str], str]:
    """Whatever is labelled as a pool's in the namespace, and the UID of its owner."""
    query = [("labelSelector", "decodepool.dev/pool")]
    return {
        (kind.name, item["metadata"]["name"]): item["metadata"]["ownerReferences"][0]["uid"]
        for kind in CHILDREN
        for item in pool.plane.api.call("GET", kind.path(pool.namespace), query=query)["items"]
    }


def uids(pool: Pool, component: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pool.pods(component)}


def pods_in(pool: Pool) -> list[str]:
    """The names of all pods of the namespace, whoever they are of."""
    return [pod["metadata"]["name"] for pod in pool.plane.api.call("GET", PODS.path(pool.namespace))["items"]]


@contextmanager
def counted_workers(pool: Pool) -> Iterator[list[int]]:
    """How many workers there were that did not end, ten times a second."""
    counts, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            counts.append(sum("deletionTimestamp" not in pod["metadata"] for pod in pool.pods()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield counts
    finally:
        over.set()
        thread.join()
