"""GPUs of which there are just enough, or too few: who waits says so, and they change hands one by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from decodepool_operator.api.faults import ApiFault
from decodepool_operator.api.kinds import PODS

from tests.cluster.shell.gpu_site import GPU, Site, discovered
from tests.cluster.shell.plane import DEPLOYMENTS, Object, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_who_waits_for_a_gpu_says_so_in_the_schedulers_words_until_one_comes(site: Site) -> None:
    """A08, a pool that cannot be scheduled is told with the reason."""
    site.nodes.add("first", {GPU: 2}, discovered("NVIDIA-A10", 23028))
    site.make("chat", replicas=3)
    site.wait("chat", "WaitingForGPU", "Unschedulable", f"Insufficient {GPU}")
    assert site.condition("chat", "Ready")["reason"] == "Unschedulable"
    site.wait("chat", "WorkersAvailable", "Available", "2 workers ready, 3 wanted")
    told = site.condition("chat", "WaitingForGPU")["message"]
    assert "0/1 nodes are available" in told
    site.nodes.add("second", {GPU: 1}, discovered("NVIDIA-A10", 23028))
    site.wait_ready("chat")
    assert site.says("chat", "WaitingForGPU", "NotWaiting")
    assert {pod["spec"]["nodeName"] for pod in site.workers("chat")} == {"first", "second"}


def test_a_cache_that_no_class_makes_a_volume_for_is_told_of_and_is_no_want_of_gpus(site: Site) -> None:
    """Most clouds' default class has no volume for several nodes; here is none at all."""
    site.nodes.add("first", {GPU: 2}, discovered("NVIDIA-A10", 23028))
    cached = {"source": {"http": {"url": site.url}}, "cache": {"size": "1Gi"}}
    site.make("chat", replicas=2, model=cached)
    site.wait("chat", "WorkersAvailable", "Unschedulable", "PersistentVolumeClaim")
    assert site.says("chat", "WaitingForGPU", "NotWaiting")
    site.wait("chat", "WorkersAvailable", "CacheNotBound", "is ReadWriteMany has no volume", seconds=100)
    site.plane.set_spec(site.space, "chat", model={"cache": None})
    site.wait_ready("chat")


def watched(look: Callable[[], Any], until_true: Callable[[], bool], seconds: float = 60) -> list[Any]:
    """Look again and again until something is true; return all that was seen."""
    seen: list[Any] = []
    end = time.monotonic() + seconds
    while not until_true():
        assert time.monotonic() < end, f"not after {seconds} s: {seen[-1]}"
        seen.append(look())
        time.sleep(0.05)
    return seen


def test_a_rollout_on_as_many_gpus_as_workers_goes_on_one_by_one(site: Site) -> None:
    site.nodes.end_seconds = 1.5
    site.nodes.add("full", {GPU: 2}, discovered("NVIDIA-A10", 23028))
    site.make("chat", replicas=2)
    site.wait_ready("chat")
    old = {pod["metadata"]["name"] for pod in site.workers("chat")}
    assert (
        site.plane.api.get(DEPLOYMENTS, site.space, "chat-worker")["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
    )
    site.plane.set_spec(site.space, "chat", contextTokens=256)

    def look() -> tuple[int, int, str, bool]:
        workers, status = site.workers("chat"), site.status("chat")
        serving = [pod for pod in workers if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]
        waiting = next(each for each in status["conditions"] if each["type"] == "WaitingForGPU")
        ready = site.says("chat", "Ready", "AllWorkersReady")
        return len(serving), len(site.holders()), waiting["reason"], ready and status["updatedReplicas"] < 2

    seen = watched(look, lambda: site.says("chat", "Ready", "AllWorkersReady"))
    assert min(serving for serving, *_ in seen) == 1, "never more than one is missing"
    assert max(holding for _, holding, *_ in seen) <= 2
    assert "WaitingForDrain" in {reason for *_, reason, _ in seen}, "why the new one waits is told"
    assert not any(early for *_, early in seen)
    assert not old & {pod["metadata"]["name"] for pod in site.workers("chat")}
    assert {each for pod in site.workers("chat") for each in pod["spec"]["containers"][0]["args"]} >= {"--context=256"}


@pytest.mark.soak  # half a minute of the operator's own patience; the simulation has it too
def test_more_workers_than_gpus_are_rolled_out_all_the_same(site: Site) -> None:
    site.nodes.add("full", {GPU: 1}, discovered("NVIDIA-A10", 23028))
    site.make("chat", replicas=2)
    site.wait("chat", "WaitingForGPU", "Unschedulable")
    site.plane.set_spec(site.space, "chat", contextTokens=256)

    def is_replaced() -> bool:
        running = [pod for pod in site.workers("chat") if is_ready(pod)]
        return [("--context=256" in pod["spec"]["containers"][0]["args"]) for pod in running] == [True]

    until(is_replaced, "the one GPU to serve the present spec", 90)
    site.wait("chat", "WaitingForGPU", "Unschedulable", f"Insufficient {GPU}")


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def test_a_lost_node_is_told_of_and_its_workers_come_back_where_there_are_gpus(site: Site) -> None:
    for name in ("first", "second"):
        site.nodes.add(name, {GPU: 2}, discovered("NVIDIA-A10", 23028))
    site.make("chat", replicas=2, template={"topologySpreadConstraints": [SPREAD]})
    site.wait_ready("chat")
    assert {pod["spec"]["nodeName"] for pod in site.workers("chat")} == {"first", "second"}
    site.nodes.lose("second")
    site.wait("chat", "Ready", "NodeNotReady", "the node of a worker is not ready")
    site.wait("chat", "WorkersAvailable", "Available", "1 worker ready, 2 wanted")
    site.wait_ready("chat")
    alive = [pod for pod in site.workers("chat") if "deletionTimestamp" not in pod["metadata"]]
    assert {pod["spec"]["nodeName"] for pod in alive} == {"first"}
    assert site.says("chat", "Draining", "Draining"), "the lost pod is still there, and counted as one that leaves"
    site.nodes.find("second")
    until(lambda: len(site.workers("chat")) == 2, "the lost pod to end with its node's return")
    site.wait("chat", "Draining", "NotDraining")


SPREAD: Object = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "worker"}},
}


def test_nodes_that_are_drained_give_up_one_worker_at_a_time(site: Site) -> None:
    for name in ("first", "second"):
        site.nodes.add(name, {GPU: 2}, discovered("NVIDIA-A10", 23028))
    site.make("chat", replicas=2, template={"topologySpreadConstraints": [SPREAD]})
    site.wait_ready("chat")
    site.plane.cluster.kubectl("cordon", "first", "second")
    first, second = (partial(evicted, site, pod) for pod in site.workers("chat"))
    assert first()
    assert not second(), "the budget holds the second while the first is missing"
    site.nodes.add("third", {GPU: 2}, discovered("NVIDIA-A10", 23028))
    site.wait_ready("chat")
    until(second, "the second to be let go", 30)
    until(lambda: {pod["spec"].get("nodeName") for pod in site.workers("chat")} == {"third"}, "both to have moved")
    site.wait_ready("chat")


def evicted(site: Site, pod: Object) -> bool:
    """Ask for a pod's eviction, as `kubectl drain` does; return whether it was granted."""
    metadata = pod["metadata"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": metadata["name"]}}
    try:
        site.plane.api.call("POST", PODS.path(metadata["namespace"], metadata["name"], "eviction"), body)
    except ApiFault as fault:
        if "disruption budget" in fault.message:
            return False
        raise
    return True


def test_a_smaller_gpu_that_comes_is_planned_for_and_its_going_changes_nothing(site: Site) -> None:
    site.nodes.add("large", {GPU: 3}, discovered("NVIDIA-L40S", 46068))
    site.make("chat", replicas=3)
    site.wait_ready("chat")
    site.nodes.add("small", {GPU: 2}, discovered("NVIDIA-A10", 23028))
    until(lambda: site.status("chat")["plan"]["deviceBytes"] == 23028 << 20, "the plan for the smaller")
    site.wait_ready("chat")
    before = on_node(site, "large")
    assert before, "the smaller has not room for all"
    site.nodes.alive.discard("small")
    site.plane.cluster.kubectl("delete", "node", "small")
    time.sleep(3)
    assert site.status("chat")["plan"]["deviceBytes"] == 23028 << 20
    assert before <= on_node(site, "large")


def on_node(site: Site, name: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in site.workers("chat") if pod["spec"].get("nodeName") == name}
