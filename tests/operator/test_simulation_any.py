"""Any edits, any blows, an operator killed at any moment: a pool comes to rest as its spec says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from decodepool_operator.planner.state import Object
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operator.lives import TOO_LITTLE, ready, require, rolls
from tests.operator.pods import component_of, is_going, is_ready
from tests.operator.pools import cluster, gpu_pool, host_path_pool, node, pool, reader_that_says, workers_that
from tests.operator.simulation import Cluster, Fate

EDITS: dict[str, Callable[[Object], Any]] = {
    "context": lambda spec: spec.update(contextTokens=64 if spec["contextTokens"] != 64 else 128),
    "up": lambda spec: spec.update(replicas=min(spec["replicas"] + 1, 4)),
    "down": lambda spec: spec.update(replicas=max(spec["replicas"] - 1, 0)),
    "suspend": lambda spec: spec.update(suspend=not spec.get("suspend", False)),
    "sessions": lambda spec: spec.update(sessionsPerWorker=spec["sessionsPerWorker"] % 8 + 1),
    "impossible": lambda spec: spec.update(
        accelerator=TOO_LITTLE if "memory" not in spec["accelerator"] else {"type": "cpu"}
    ),
    "image": lambda spec: spec.update(template={"image": "bad:1"} if "template" not in spec else {}),
    "nothing": lambda spec: None,
}


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(sorted(EDITS)), st.integers(0, 12)), max_size=8))
def test_after_any_edits_at_any_moments_the_pool_comes_to_rest_as_its_last_spec_says(
    steps: list[tuple[str, int]],
) -> None:
    """A02, a change lands while another is handled: none is lost, nothing is written when all is done, or left over."""
    bad = workers_that(Fate(crashes="boom"), lambda pod: pod["spec"]["containers"][0]["image"] == "bad:1")
    here = cluster(pool(replicas=2), fate=bad)

    def check(moment: Cluster) -> None:
        if moment.condition("Ready")["status"] != "True" or moment.status["observedGeneration"] != generation(moment):
            return
        arguments = {pod["spec"]["containers"][0]["args"][2] for pod in moment.workers() if is_ready(pod)}
        assert arguments == {f"--context={moment.pool['spec']['contextTokens']}"}

    for name, seconds in steps:
        here.edit(EDITS[name])
        here.run(seconds, lambda moment: check(moment) if "conditions" in moment.status else None)
    here.run(180)
    writes = here.writes
    here.run(150)
    assert here.writes == writes
    assert here.status["observedGeneration"] == generation(here)
    rests_as_told(here)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(moments=st.sets(st.integers(0, 60), max_size=12), seconds=st.integers(0, 8))
def test_an_operator_that_is_killed_between_any_two_writes_leaves_nothing_half_done(
    moments: set[int], seconds: int
) -> None:
    here = Cluster(host_path_pool(replicas=2), fate=reader_that_says())
    writes = itertools.count()
    here.dies = lambda: next(writes) in moments
    here.run(seconds)
    here.edit(rolls)
    here.run(seconds)
    here.edit(lambda spec: spec.update(replicas=3))
    here.run(90)
    assert ready(here) == ("True", "AllWorkersReady")
    kinds = sorted(key for key in here.objects if key[0] in ("Deployment", "Job"))
    assert kinds == [("Deployment", "chat-gateway"), ("Deployment", "chat-worker")]
    rests_as_told(here)


BLOWS = ["kill", "fail", "gateway fails", "load", "node goes", "node comes", "silence", "refusal"]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    blows=st.lists(
        st.tuples(st.sampled_from(BLOWS), st.integers(0, 20)),
        max_size=10,
    )
)
def test_after_any_blows_an_autoscaled_gpu_pool_comes_to_rest_within_its_bounds(blows: list[tuple[str, int]]) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 3, "scaleDownDelaySeconds": 20}
    here = cluster(gpu_pool(replicas=2, autoscaling=scaling), nodes=[node("a"), node("b"), node("c")])
    here.run(5)
    for name, seconds in blows:
        strike(here, name)
        here.run(seconds, lambda moment: require(1 <= moment.pool["spec"]["replicas"] <= 3, "out of bounds"))
    here.load, here.silent, here.faults = {}, set(), ()
    here.nodes = [node(name) for name in "abc"]
    here.run(600)
    assert ready(here) == ("True", "AllWorkersReady")
    assert here.pool["spec"]["replicas"] == len(here.ready_workers()) == 1
    writes = here.writes
    here.run(200)
    assert here.writes == writes


def strike(here: Cluster, name: str) -> None:
    """Do something that happens to clusters."""
    workers = sorted(here.workers(), key=lambda pod: str(pod["metadata"]["name"]))
    if name == "node goes" and here.nodes:
        gone = here.nodes.pop()["metadata"]["name"]
        here.pods = {key: pod for key, pod in here.pods.items() if pod["metadata"].get("node") != gone}
    elif name == "node comes":
        here.nodes.append(node(f"n{len(here.nodes)}"))
    elif name == "load":
        here.load = {pod["metadata"]["name"]: 8 for pod in workers}
    elif name == "silence":
        here.silent = {pod["metadata"]["name"] for pod in workers}
    elif name == "kill" and workers:
        del here.pods[workers[0]["metadata"]["name"]]
    elif name == "fail" and workers:
        workers[0]["status"].update(phase="Failed", reason="UnexpectedAdmissionError", conditions=[])
    elif name == "gateway fails":
        gateways = [pod for pod in here.pods.values() if component_of(pod) == "gateway"]
        for pod in gateways[:1]:
            pod["status"].update(phase="Failed", reason="Evicted", conditions=[])
    elif name == "refusal":
        here.faults = ("PodMonitor chat: Forbidden: no PodMonitors here",)


def generation(here: Cluster) -> int:
    found: int = here.pool["metadata"]["generation"]
    return found


def rests_as_told(here: Cluster) -> None:
    """Hold the cluster to the spec."""
    spec = here.pool["spec"]
    wanted = 0 if spec.get("suspend") else spec["replicas"]
    impossible, broken = "memory" in spec["accelerator"], spec.get("template", {}).get("image") == "bad:1"
    assert not [pod for pod in here.pods.values() if is_going(pod)]
    if impossible:
        assert ready(here) == ("False", "Suspended" if spec.get("suspend") else "CannotFit")
    elif not wanted or broken:
        assert here.condition("Ready")["status"] == "False"
        assert len(here.workers()) == wanted
    else:
        assert ready(here) == ("True", "AllWorkersReady")
        assert len(here.ready_workers()) == wanted == here.status["readyReplicas"]
