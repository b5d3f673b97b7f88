"""Workers that fail or hang: one for one, ever slower, and told once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import Signals
from typing import Any

import pytest
from decodepool_cluster import product
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import wait_until
from decodepool_operator.api.faults import ApiFault

from tests.cluster.pool.conftest import Pools
from tests.cluster.pool.pools import Object, Pool, host_path

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]

DEATHS: list[Object] = [
    {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy device is left"},
    {"phase": "Failed", "reason": "Evicted", "message": "the node was low on resource: memory"},
    {"phase": "Succeeded"},
]
"""What kubelets write of pods that are over."""

LOOP_SECONDS = 40


@pytest.fixture(scope="module")
def made(pools: Pools) -> Pool:
    return pools("frail").make(host_path("tiny-1.gguf"), replicas=3)


@pytest.fixture
def frail(made: Pool) -> Pool:
    return made.wait_ready()


def names(pool: Pool) -> set[str]:
    return {pod["metadata"]["name"] for pod in pool.pods()}


def dead(pods: list[Object]) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["status"].get("phase") in ("Failed", "Succeeded") and "deletionTimestamp" not in pod["metadata"]
    ]


@contextmanager
def watched(pool: Pool, deed: Any = lambda _: None) -> Iterator[dict[str, float]]:
    """When each pod was first seen; `deed` is done to each list of pods."""
    since = {name: time.monotonic() for name in names(pool)}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            pods = pool.pods()
            for pod in pods:
                since.setdefault(pod["metadata"]["name"], time.monotonic())
            deed(pods)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield since
    finally:
        over.set()
        thread.join()


def test_each_failed_pod_is_replaced_and_goes(frail: Pool) -> None:
    """A05, failed pods pile up: a kubelet never starts such a pod again, and nobody else removes it."""
    before = names(frail)
    with watched(frail) as since:
        for name, death in zip(sorted(before), DEATHS, strict=True):
            frail.set_pod_status(name, **death)
        wait_until(lambda: frail.condition("Ready")["status"] == "False", "the failures to be noticed", 10)
        wait_until(lambda: not names(frail) & before, "the dead to be removed")
        frail.wait_ready()
        time.sleep(2)
    replacements = since.keys() - before
    # Where the operator sees the second death before the third, it holds the pool back, and one that has begun may go.
    assert len(replacements) in (3, 4), [f"{event['reason']}: {event['message']}" for event in frail.events()]
    told = [event for event in frail.events() if event["reason"] == "WorkerFailed"]
    assert told, "each failure is an event"
    assert all(event["type"] == "Warning" for event in told)


@pytest.mark.soak
def test_pods_that_fail_for_ever_are_replaced_ever_slower(frail: Pool) -> None:
    """A05, failed pods pile up: not where every new one fails too."""
    frail.change(replicas=1, contextTokens=2048)
    frail.wait_ready()
    begun, conditions, writes = time.monotonic(), set(), set()

    def fail(pods: list[Object]) -> None:
        pool = frail.get()
        writes.add(pool["metadata"]["resourceVersion"])
        degraded = frail.condition("Degraded")
        conditions.add((degraded.get("status"), degraded.get("reason")))
        for pod in pods:
            if pod["status"].get("phase") in ("Pending", "Running") and "deletionTimestamp" not in pod["metadata"]:
                with suppress(ApiFault):
                    frail.set_pod_status(pod["metadata"]["name"], **DEATHS[0])

    with watched(frail, fail) as since:
        time.sleep(LOOP_SECONDS)
    late = sorted(at for at in since.values() if at > begun + LOOP_SECONDS / 2)
    assert len(late) <= 4, "one try, and what the ReplicaSet makes of it before anybody looks"
    assert len(dead(frail.pods())) <= 2, "the dead do not pile up"
    assert ("True", "WorkersFail") in conditions
    assert len(writes) < 60, "a failure is a few writes"
    told = frail.condition("Degraded")
    assert "UnexpectedAdmissionError" in told["message"]
    frail.change(contextTokens=1024)
    frail.wait_ready(30)  # a changed spec may be the repair: it is tried at once


@pytest.fixture
def impatient(cluster: Cluster) -> Iterator[None]:
    """An operator whose workers may take half a minute to start."""
    product.install(cluster, "--set", "workers.startupSeconds=30")
    yield
    product.install(cluster)


@pytest.mark.soak
def test_a_worker_that_hangs_at_its_start_is_started_again(impatient: None, pools: Pools, cluster: Cluster) -> None:
    """A16, a slow load or a hang: a process that is stopped never comes back, and its drain may take minutes."""
    del impatient
    pool = pools("hanging").make(host_path("tiny-1.gguf"), drain={"timeoutSeconds": 600})

    def status() -> Object:
        found: Object = pool.pods()[0]["status"]["containerStatuses"][0]
        return found

    wait_until(lambda: pool.pods() and pool.pods()[0]["status"].get("containerStatuses"), "the pod", 60)
    wait_until(lambda: "running" in status()["state"], "its container", 60)
    cluster.signal_container(pool.pods()[0]["metadata"]["name"], pool.namespace, Signals.SIGSTOP)
    begun = time.monotonic()
    wait_until(lambda: status()["restartCount"] == 1, "the startup limit to end it", 90)
    assert time.monotonic() - begun >= 25
    pool.wait_ready()
    assert len(pool.pods()) == 1
