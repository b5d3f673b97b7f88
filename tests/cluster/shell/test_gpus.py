"""GPUs as nodes offer them: by which of them a pool is planned, what its workers ask for, what is refused before."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from decodepool_operator.api.faults import ApiFault
from decodepool_operator.api.kinds import NODES, POOLS
from decodepool_sizing.devices import gpu_usable_bytes

from tests.cluster.shell.fake_nodes import FakeNodes
from tests.cluster.shell.gpu_site import GPU, LARGE_SLICE, SLICE, Site, discovered
from tests.cluster.shell.plane import Object, Plane
from tests.sizing.gguf_bytes import tiny
from tests.sizing.test_ranged_http import served

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


PASCAL = {"nvidia.com/gpu.compute.major": "6", "nvidia.com/gpu.compute.minor": "1"}


def add_several_products(nodes: FakeNodes) -> None:
    """Whole cards of three sizes, one of them behind a taint, a sliced one, and one of a team's own."""
    nodes.add("h100", {GPU: 4}, discovered("NVIDIA-H100-80GB-HBM3", 81559, rack="a"), taint=f"{GPU}=present")
    nodes.add("a10", {GPU: 4}, discovered("NVIDIA-A10", 23028, rack="a"))
    nodes.add("l40s", {GPU: 4}, discovered("NVIDIA-L40S", 46068, rack="b"))
    nodes.add(
        "sliced",
        {GPU: 0, SLICE: 7},
        discovered("NVIDIA-A100-SXM4-80GB", 81920, rack="c", **{f"{SLICE}.memory": "9728"}),
    )
    nodes.add("teams", {GPU: 4}, discovered("NVIDIA-GeForce-RTX-4080", 16376, rack="b"), taint="team=vision")


PLANS: dict[str, tuple[Object, Object, int, set[str]]] = {
    "whole cards, anywhere": ({}, {}, 23028, {"h100", "a10", "l40s"}),
    "a product by its label": ({"product": "NVIDIA-L40S"}, {}, 46068, {"l40s"}),
    "a rack": ({}, {"nodeSelector": {"rack": "b"}}, 46068, {"l40s"}),
    "a node by affinity": ({}, {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["b"]}]},
                              {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a10"]}]}]}}}},
        23028, {"a10", "h100"}),
    "the card that a taint keeps others off": ({"product": "NVIDIA-H100-80GB-HBM3"}, {}, 81559, {"h100"}),
    "a team's own card, tolerated": (
        {}, {"nodeSelector": {"rack": "b"}, "tolerations": [{"key": "team", "operator": "Exists"}]}, 16376,
        {"l40s", "teams"}),
    "a slice": ({"resource": SLICE}, {}, 9728, {"sliced"}),
    "memory that the spec names": ({"memory": "16Gi"}, {"nodeSelector": {"rack": "b"}}, 16384, {"l40s"}),
}  # fmt: skip
"""Accelerator, template; MiB that are planned with, and the nodes that a worker may be put on."""


def test_each_pool_is_planned_by_the_smallest_device_it_may_get_and_gets_one_no_smaller(site: Site) -> None:
    """A08, MIG slices taken for whole cards; taints are tolerated."""
    add_several_products(site.nodes)
    names = {case: f"case-{index}" for index, case in enumerate(PLANS)}
    for case, (accelerator, template, _, _) in PLANS.items():
        site.make(names[case], accelerator, template=template)
    for case, (accelerator, _, mebibytes, admitted) in PLANS.items():
        site.wait_ready(names[case])
        plan, (worker,) = site.status(names[case])["plan"], site.workers(names[case])
        assert plan["deviceBytes"] == mebibytes << 20, case
        assert worker["spec"]["nodeName"] in admitted, case
        resource = accelerator.get("resource", GPU)
        (resources,) = [each["resources"] for each in worker["spec"]["containers"]]
        assert resources["requests"][resource] == resources["limits"][resource] == "1", case
        assert f"--memory={mebibytes << 20}" in worker["spec"]["containers"][0]["args"], case


def test_a_whole_card_is_not_found_where_it_is_sliced_and_a_slice_not_where_it_is_whole(site: Site) -> None:
    """A08, MIG slices taken for whole cards."""
    site.nodes.add("sliced", {GPU: 0, SLICE: 7}, discovered("NVIDIA-A100-SXM4-80GB", 81920))
    site.make("whole")
    site.make("larger", {"resource": LARGE_SLICE})
    for name, resource in (("whole", GPU), ("larger", LARGE_SLICE)):
        site.wait(
            name,
            "CapacityPlanned",
            "DeviceUnknown",
            f"none of the 1 nodes that the pool admits, of 1, offers {resource}",
        )
        assert site.condition(name, "Ready")["reason"] == "DeviceUnknown"
        assert not site.workers(name), "nothing is made that could not be planned"
    site.nodes.add("fresh", {GPU: 1}, discovered("NVIDIA-A10", 23028))
    site.wait_ready("whole")
    assert site.says("larger", "CapacityPlanned", "DeviceUnknown", "of 2, offers")


def test_workers_are_kept_off_gpus_older_than_the_engines_oldest_and_what_runs_is_left_alone(site: Site) -> None:
    site.nodes.add("old", {GPU: 4}, discovered("Tesla-T4", 15360))
    site.make("anywhere", replicas=2)
    site.make("asked", {"product": "Tesla-T4"})
    site.wait("anywhere", "CapacityPlanned", "UnsupportedGPU", "node old's Tesla-T4: compute capability 7.5")
    site.wait("asked", "CapacityPlanned", "UnsupportedGPU", "accelerator.product: Tesla-T4: compute capability 7.5")
    for name in ("anywhere", "asked"):
        assert site.condition(name, "Ready")["reason"] == "UnsupportedGPU"
        assert not site.workers(name), name
    site.nodes.add("new", {GPU: 2}, discovered("NVIDIA-A10", 23028))
    site.wait_ready("anywhere")
    running = {pod["metadata"]["name"] for pod in site.workers("anywhere")}
    site.nodes.add("older", {GPU: 4}, discovered("Quadro-P6000", 24576, **PASCAL))
    site.wait("anywhere", "CapacityPlanned", "Planned", "nodes with Quadro-P6000, Tesla-T4 are left out")
    assert site.says("anywhere", "Ready", "AllWorkersReady")
    assert {pod["metadata"]["name"] for pod in site.workers("anywhere")} == running
    site.plane.set_spec(site.space, "anywhere", replicas=3)
    site.wait("anywhere", "WaitingForGPU", "Unschedulable", f"Insufficient {GPU}")
    assert {pod["spec"].get("nodeName", "new") for pod in site.workers("anywhere")} == {"new"}


def test_a_worker_that_cannot_run_where_it_came_before_the_labels_is_made_elsewhere_once_they_come(site: Site) -> None:
    site.nodes.unfit.add("old")
    site.nodes.add("old", {GPU: 1})
    site.make("chat", {"memory": "16Gi"})
    site.wait("chat", "Ready", "CrashLoopBackOff", "it cannot run here")
    site.nodes.add("new", {GPU: 1}, discovered("NVIDIA-A10", 23028))
    labels = discovered("Tesla-T4", 15360, **{"nvidia.com/gpu.compute.major": "7"})
    site.plane.change(NODES, "", "old", {"metadata": {"labels": labels}})
    site.wait_ready("chat")
    (worker,) = site.workers("chat")
    assert worker["spec"]["nodeName"] == "new"


RESOURCES: dict[str, tuple[Object, str | None]] = {
    "a request alone": ({"requests": {GPU: 1}}, None),
    "a limit alone": ({"limits": {GPU: "1"}}, None),
    "a request less than its limit": (
        {"requests": {GPU: 1}, "limits": {GPU: 2}}, f"{GPU}: request 1 and limit 2 differ"),
    "more than a worker uses": ({"limits": {GPU: 2}}, f"{GPU}: 2 asked for, but accelerator.count is 1"),
    "half a card": ({"limits": {GPU: "500m"}}, f"{GPU}: 1/2 asked for, but accelerator.count is 1"),
}  # fmt: skip
"""The template's resources, and the words that refuse them."""


def test_pairs_of_request_and_limit_are_made_equal_or_refused_before_there_is_a_pod(site: Site) -> None:
    """A08, GPU requests that Kubernetes rejects."""
    site.nodes.add("a10", {GPU: 4}, discovered("NVIDIA-A10", 23028))
    names = {case: f"case-{index}" for index, case in enumerate(RESOURCES)}
    for case, (resources, _) in RESOURCES.items():
        site.make(names[case], template={"resources": resources})
    for case, (_, words) in RESOURCES.items():
        if words is None:
            site.wait_ready(names[case])
            (worker,) = site.workers(names[case])
            asked = worker["spec"]["containers"][0]["resources"]
            assert asked["requests"][GPU] == asked["limits"][GPU] == "1", case
        else:
            site.wait(names[case], "CapacityPlanned", "InvalidResources", words)
            assert not site.workers(names[case]), case


SMALL_CARDS = {"one that a context of CUDA alone fills": 100, "one that leaves too little": 652}
"""MiB."""


@pytest.mark.parametrize("mebibytes", SMALL_CARDS.values(), ids=SMALL_CARDS)
def test_what_cannot_fit_is_told_with_the_bytes_needed_and_those_there_are(mebibytes: int, site: Site) -> None:
    """A07, a capacity that is negative, or rounded up to one session."""
    site.nodes.add("tiny", {GPU: 1}, discovered("NVIDIA-TINY", mebibytes))
    site.make("chat", sessions=200)
    site.wait("chat", "CapacityPlanned", "CannotFit")
    told = site.condition("chat", "CapacityPlanned")["message"]
    usable_bytes = gpu_usable_bytes(mebibytes << 20)
    needed, available = (int(each) for each in re.findall(r"([0-9]+) bytes", told))
    assert needed > available == usable_bytes >= 0, told
    assert site.condition("chat", "Ready")["message"] == told
    assert not site.workers("chat")


def test_the_most_sessions_that_fit_are_planned_and_one_more_is_refused(site: Site) -> None:
    """A07, a capacity that is not what a worker gets."""
    with served(tiny({"llama.context_length": 1 << 20})) as long:
        wide = replace(site, url=long.url)
        site.nodes.add("slices", {SLICE: 7}, {f"{SLICE}.memory": "1024"})
        spec: Object = {"accelerator": {"resource": SLICE}, "contextTokens": 1 << 17}
        wide.make("most", **spec, sessions=None)
        wide.wait_ready("most")
        most = site.status("most")["plan"]["sessionsPerWorker"]
        assert site.status("most")["plan"]["limitedBy"] == "memory"
        wide.make("all", **spec, sessions=most)
        wide.make("more", **spec, sessions=most + 1)
        wide.wait_ready("all")
        wide.wait("more", "CapacityPlanned", "CannotFit")
        wide.make("long", accelerator={"resource": SLICE}, contextTokens=(1 << 20) + 1)
        wide.wait("long", "CapacityPlanned", "ContextTooLong", str((1 << 20) + 1))
    assert not site.workers("more")
    assert not site.workers("long")


REFUSED = {
    "no sessions": {"sessionsPerWorker": 0},
    "less than none": {"sessionsPerWorker": -1},
    "a text": {"sessionsPerWorker": "4"},
    "a fraction": {"sessionsPerWorker": 1.5},
    "no context": {"contextTokens": 0},
    "a context beyond every model": {"contextTokens": 10**12},
    "a resource of a CPU": {"accelerator": {"type": "cpu", "resource": GPU}},
    "a resource that is none": {"accelerator": {"type": "nvidia", "resource": "gpu"}},
}


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED)
def test_numbers_that_cannot_be_are_refused_by_the_api_server(spec: Object, plane: Plane, space: str) -> None:
    """A07, a capacity of numbers that mean nothing."""
    with pytest.raises(ApiFault, match=next(iter(spec))):
        plane.make(space, "chat", "http://models.example/tiny.gguf", **spec)
    assert not plane.names(POOLS, space)
