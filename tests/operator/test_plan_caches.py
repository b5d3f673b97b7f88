"""The claim of a pool's cache: asked for as it is needed, and told of where it keeps workers from starting."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from decodepool_operator import times
from decodepool_operator.planner.objects.model_files import cache_claim
from decodepool_operator.planner.plan import plan
from decodepool_operator.planner.pools import read_pool
from decodepool_operator.planner.state import Object

from tests.operator.pools import URL, cluster, gpu_pool, node, pool, workers_that
from tests.operator.simulation import START, Cluster, Fate

CLAIM = ("PersistentVolumeClaim", "chat-models")
UNBOUND = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found."
ELSEWHERE = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had volume node affinity conflict."
NO_GPU = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


def cached(**cache: Any) -> Object:
    return {"source": {"http": {"url": URL}}, "cache": {"size": "20Gi", **cache}}


MODES: dict[str, tuple[Object, Object, str]] = {
    "one worker": ({}, {}, "ReadWriteOnce"),
    "two workers": ({"replicas": 2}, {}, "ReadWriteMany"),
    "autoscaled": ({"autoscaling": {"maxReplicas": 3}}, {}, "ReadWriteMany"),
    "an HPA's": ({}, {"accessMode": "ReadWriteMany"}, "ReadWriteMany"),
    "two on one node": ({"replicas": 2}, {"accessMode": "ReadWriteOnce"}, "ReadWriteOnce"),
}


@pytest.mark.parametrize("name", MODES)
def test_a_cache_is_shared_where_several_workers_may_need_it_or_the_spec_says_so(name: str) -> None:
    spec, cache, mode = MODES[name]
    claim = cache_claim(read_pool(pool(model=cached(**cache, storageClassName="fast"), **spec)))
    assert claim is not None
    assert (claim["spec"]["accessModes"], claim["spec"]["storageClassName"]) == ([mode], "fast")


def waiting(claim: Object, **parts: Any) -> Cluster:
    """Two workers of a pool with a cache, neither ready, for longer than volumes take."""
    here = cluster(gpu_pool(model=cached(), replicas=2), nodes=[node("a", gpus=2)], **parts)
    here.run(2)
    here.objects[CLAIM]["spec"] |= claim.get("spec", {})
    here.objects[CLAIM]["status"] = claim["status"]
    here.run(90)
    return here


NEVER = workers_that(Fate(ready_after=10_000))
PENDING: Object = {"status": {"phase": "Pending"}}
ONCE: Object = {"status": {"phase": "Bound"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
MANY: Object = {"status": {"phase": "Bound"}, "spec": {"accessModes": ["ReadWriteMany"]}}

CASES: dict[str, tuple[Object, str | None, str]] = {
    "no volume, says the scheduler": (PENDING, UNBOUND, "CacheNotBound"),
    "no volume, says nobody": (PENDING, None, "CacheNotBound"),
    "no volume before there is a GPU": (PENDING, NO_GPU, "Unschedulable"),
    "a volume that is elsewhere": (ONCE, ELSEWHERE, "CacheNotShared"),
    "no GPU": (ONCE, NO_GPU, "Unschedulable"),
    "a shared volume that is elsewhere": (MANY, ELSEWHERE, "Unschedulable"),
    "a volume, and slow workers": (ONCE, None, "Starting"),
}


@pytest.mark.parametrize("name", CASES)
def test_workers_that_their_cache_keeps_from_starting_say_so(name: str) -> None:
    claim, unschedulable, reason = CASES[name]
    here = waiting(claim, fate=NEVER, unschedulable=unschedulable)
    assert here.condition("WorkersAvailable")["reason"] == here.condition("Ready")["reason"] == reason
    waits_for_gpu = reason == "Unschedulable"
    assert (here.condition("WaitingForGPU")["status"] == "True") is waits_for_gpu
    assert (unschedulable or "") in here.condition("Ready")["message"] or reason == "CacheNotShared"


def test_a_worker_whose_node_cannot_mount_the_volume_beside_another_says_so() -> None:
    """A volume that one node has is not let go for the next: the second worker stays in ContainerCreating."""
    here = waiting(ONCE)
    assert here.condition("Ready")["status"] == "True", "two workers on one node share any volume"
    second = here.ready_workers()[1]
    stuck = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": times.written(START)}
    second["status"] = {"phase": "Pending", "conditions": [stuck]}
    found = plan(here.pool, here.observed(), here.now + timedelta(seconds=61))
    told = {each["type"]: each for each in found.status["conditions"]}
    assert told["Degraded"]["reason"] == told["Ready"]["reason"] == "CacheNotShared"
    assert "remove model.cache, or give it anew" in told["Degraded"]["message"]


def test_a_claim_that_has_no_volume_yet_is_looked_at_when_it_is_late() -> None:
    here = waiting(PENDING, fate=NEVER)
    made = times.read(here.objects[CLAIM]["metadata"]["creationTimestamp"])
    assert made is not None
    found = plan(here.pool, here.observed(), made + timedelta(seconds=10))
    assert found.look_again_seconds == 50
