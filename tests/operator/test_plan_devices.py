"""Which memory a pool is planned by: the spec's, the product's, or that of the smallest GPU its workers may land on."""

from __future__ import annotations

from typing import Any

import pytest
from decodepool_operator.planner.devices import Device, Refused, find_device
from decodepool_operator.planner.nodes import OLD_PRODUCTS, PRODUCTS, admits, off_gpus, worker_affinity
from decodepool_operator.planner.pools import read_pool
from decodepool_operator.planner.state import Object
from decodepool_sizing.devices import ANY_CORES
from decodepool_sizing.gpu_names import find_gpu
from decodepool_sizing.gpus import GPU, GPUS
from decodepool_sizing.support import gpu_refusals

from tests.operator.pools import gpu_pool, node, pool

MEMORY, PRODUCT = "nvidia.com/gpu.memory", "nvidia.com/gpu.product"
SMALL = node("small", {MEMORY: "24576", PRODUCT: "NVIDIA-A30", "zone": "a"})
LARGE = node("large", {MEMORY: "81559", PRODUCT: "NVIDIA-H100-80GB-HBM3", "zone": "b", "rank": "7"})
GIB = 1 << 30
SLICE = "nvidia.com/mig-1g.10gb"


SHARES_LITTLE = ("8.6", "8.9", "12.0")
"""Compute capabilities whose thread blocks have too little shared memory for heads of 256 dimensions in f16."""


def found(
    nodes: list[Object] | None,
    template: Object | None = None,
    status: Object | None = None,
    refused: tuple[str, ...] = (),
    **accelerator: Any,
) -> Any:
    raw = gpu_pool(accelerator={"type": "nvidia", **accelerator}, template=template)
    seen = None if nodes is None else tuple(nodes)
    pool = read_pool({**raw, "status": status or {}})
    return find_device(pool, seen, lambda capability: ["too wide"] if capability in refused else [])


def mebibytes(nodes: list[Object], template: Object | None = None, **accelerator: Any) -> int:
    device = found(nodes, template, **accelerator)
    assert isinstance(device, Device), device
    return device.memory.memory_bytes >> 20


def test_the_spec_wins_over_the_nodes() -> None:
    assert mebibytes([SMALL], memory="80Gi") == 80 * 1024


def test_a_product_that_is_known_needs_no_node() -> None:
    assert mebibytes([], product="NVIDIA-H200") == find_gpu("H200").memory_mib


def test_a_product_that_is_not_known_is_planned_by_the_nodes_that_have_it() -> None:
    new = node("new", {MEMORY: "99000", PRODUCT: "NVIDIA-X1"})
    assert mebibytes([SMALL, new], product="NVIDIA-X1") == 99_000


def test_several_products_are_planned_by_the_smallest() -> None:
    assert mebibytes([LARGE, SMALL]) == 24_576


def affine(*expressions: Object, fields: list[Object] | None = None) -> Object:
    term = {"matchExpressions": list(expressions), "matchFields": fields or []}
    required = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


ADMITS_ONLY_LARGE = {
    "selector": {"nodeSelector": {"zone": "b"}},
    "In": affine({"key": "zone", "operator": "In", "values": ["b", "c"]}),
    "NotIn": affine({"key": "zone", "operator": "NotIn", "values": ["a"]}),
    "Exists": affine({"key": "rank", "operator": "Exists"}),
    "Gt": affine({"key": "rank", "operator": "Gt", "values": ["6"]}),
    "name": affine(fields=[{"key": "metadata.name", "operator": "In", "values": ["large"]}]),
}
ADMITS_ONLY_SMALL = {
    "DoesNotExist": affine({"key": "rank", "operator": "DoesNotExist"}),
    "both must hold": affine({"key": "zone", "operator": "Exists"}, {"key": "zone", "operator": "In", "values": ["a"]}),
}


@pytest.mark.parametrize("name", sorted(ADMITS_ONLY_LARGE))
def test_nodes_that_the_template_does_not_admit_do_not_count(name: str) -> None:
    assert mebibytes([SMALL, LARGE], ADMITS_ONLY_LARGE[name]) == 81_559


@pytest.mark.parametrize("name", sorted(ADMITS_ONLY_SMALL))
def test_nodes_that_the_template_admits_do(name: str) -> None:
    assert mebibytes([SMALL, LARGE], ADMITS_ONLY_SMALL[name]) == 24_576


TAINT = {"key": "team", "value": "other", "effect": "NoSchedule"}
TOLERATIONS = {
    "equal": {"key": "team", "operator": "Equal", "value": "other", "effect": "NoSchedule"},
    "equal is the default": {"key": "team", "value": "other"},
    "exists": {"key": "team", "operator": "Exists"},
    "everything": {"operator": "Exists"},
}


@pytest.mark.parametrize("name", sorted(TOLERATIONS))
def test_a_tainted_node_counts_where_it_is_tolerated(name: str) -> None:
    tainted = node("tainted", {MEMORY: "16384"}, taints=[TAINT])
    assert mebibytes([tainted, LARGE]) == 81_559
    assert mebibytes([tainted, LARGE], {"tolerations": [TOLERATIONS[name]]}) == 16_384


@pytest.mark.parametrize(
    "wrong", [{"key": "team", "value": "ours"}, {"key": "team", "effect": "NoExecute", "operator": "Exists"}]
)
def test_another_toleration_does_not_help(wrong: Object) -> None:
    tainted = node("tainted", {MEMORY: "16384"}, taints=[TAINT])
    assert mebibytes([tainted, LARGE], {"tolerations": [wrong]}) == 81_559


def test_the_taint_that_keeps_others_off_gpus_is_tolerated() -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    assert mebibytes([node("gpu", {MEMORY: "24576"}, taints=[taint])]) == 24_576


def test_a_node_that_is_cordoned_for_now_still_counts() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    assert mebibytes([LARGE, {**SMALL, "spec": {"taints": [taint], "unschedulable": True}}]) == 24_576


def test_a_slice_is_planned_by_its_own_memory_and_never_by_the_card() -> None:
    labels = {MEMORY: "81559", PRODUCT: "NVIDIA-H100", f"{SLICE}.memory": "9856"}
    mig = node("mig", labels, resource=SLICE, gpus=7)
    assert mebibytes([mig], resource=SLICE) == 9_856
    assert found([mig], resource=SLICE).memory.name == "NVIDIA-H100 MIG 1g.10gb"


def test_a_slice_without_a_label_is_planned_by_its_name() -> None:
    labels = {MEMORY: "81559", PRODUCT: "NVIDIA-H100"}
    known = node("mig", labels, resource=SLICE, gpus=7)
    assert mebibytes([known], resource=SLICE) == find_gpu("H100 MIG 1g.10gb").memory_mib
    unknown = node("mig", {MEMORY: "81559"}, resource=SLICE, gpus=7)
    assert mebibytes([unknown], resource=SLICE) == find_gpu("A100 MIG 1g.10gb").memory_mib
    strange = "nvidia.com/mig-9g.990gb"
    assert 800 * 10**9 < mebibytes([node("mig", {}, resource=strange)], resource=strange) << 20 < 990 * 10**9


def test_the_whole_card_is_not_offered_where_it_is_sliced() -> None:
    mig = {**node("mig", {MEMORY: "81559"}, gpus=0), "status": {"allocatable": {"nvidia.com/gpu": "0", SLICE: "7"}}}
    refused = found([mig])
    assert isinstance(refused, Refused)
    assert "none of the 1 nodes that the pool admits, of 1, offers nvidia.com/gpu" in refused.message


def test_a_shared_gpu_is_planned_by_the_share() -> None:
    shared = node("shared", {MEMORY: "24576", "nvidia.com/gpu.replicas": "4"}, gpus=4)
    assert mebibytes([shared]) == 24_576 // 4


SHARED_L4 = {MEMORY: "23034", PRODUCT: "NVIDIA-L4-SHARED", "nvidia.com/gpu.replicas": "3"}
SHARED_SLICE = {f"{SLICE}.memory": "9728", f"{SLICE}.replicas": "2", "nvidia.com/gpu.replicas": "4"}
A100: Object = {PRODUCT: "NVIDIA-A100-SXM4-80GB"}
SHARES: dict[str, tuple[Object, Object, int]] = {
    "by its product": (node("a", SHARED_L4), {"product": "NVIDIA-L4-SHARED"}, 23_034 // 3),
    "by its product, sized by it": (
        node("a", {**SHARED_L4, MEMORY: ""}), {"product": "NVIDIA-L4-SHARED"}, find_gpu("L4").memory_mib // 3),
    "by its resource": (
        node("a", {**SHARED_L4, PRODUCT: "NVIDIA-L4"}, resource="nvidia.com/gpu.shared"),
        {"product": "NVIDIA-L4", "resource": "nvidia.com/gpu.shared"}, 23_034 // 3),
    "a slice": (node("a", SHARED_SLICE, resource=SLICE), {"resource": SLICE}, 9_728 // 2),
    "a slice by its resource": (
        node("a", SHARED_SLICE, resource=f"{SLICE}.shared"), {"resource": f"{SLICE}.shared"}, 9_728 // 2),
    "a slice without a size": (
        node("a", {f"{SLICE}.replicas": "2"}, resource=SLICE), {"resource": SLICE}, 9_728 // 2),
    "a slice of a product that does not tell": (
        node("a", {**A100, f"{SLICE}.memory": "9728", f"{SLICE}.replicas": "4"}, resource=SLICE),
        {"product": A100[PRODUCT], "resource": SLICE}, 9_728 // 4),
    "by a product that does not tell": (
        node("a", {**A100, MEMORY: "81920", "nvidia.com/gpu.replicas": "4"}),
        {"product": A100[PRODUCT]}, 81_920 // 4),
}  # fmt: skip
"""A node, the pool's accelerator, and the MiB of a share."""


@pytest.mark.parametrize("case", SHARES)
def test_what_is_shared_out_is_never_planned_as_all_of_it(case: str) -> None:
    shared, accelerator, planned = SHARES[case]
    assert mebibytes([shared], **accelerator) == planned


def test_a_slice_that_is_not_shared_is_planned_by_its_product_whatever_is_shared_beside_it() -> None:
    beside = node("a", {**A100, f"{SLICE}.replicas": "1", "nvidia.com/gpu.replicas": "4"}, resource=SLICE)
    device = found([beside], product=A100[PRODUCT], resource=SLICE)
    assert (device.memory.memory_bytes >> 20, device.told_by) == (9_728, "product")


def status_of(device: Device) -> Object:
    """The status of a pool that was planned for a device."""
    told = f"{device.memory.name} ({device.told_by})"
    return {"plan": {"deviceBytes": device.memory.memory_bytes, "placement": device.placement, "device": told}}


def test_a_share_that_decided_a_plan_does_so_while_its_node_is_gone() -> None:
    shared, whole = node("a", {**A100, MEMORY: "81920", "nvidia.com/gpu.replicas": "4"}), node("b", A100)
    product = A100[PRODUCT]
    by_product = found([whole], product=product)
    before = found([whole, shared], status=status_of(by_product), product=product)
    assert before.memory.memory_bytes >> 20 == 81_920 // 4
    for seen in ([whole], [], None):
        assert found(seen, status=status_of(before), product=product) == before


UNTOLD: dict[str, tuple[Object, Object, str]] = {
    "its product": ({PRODUCT: "NVIDIA-L4-SHARED", MEMORY: "23034"}, {}, "nvidia.com/gpu"),
    "the product that is asked for": (
        {PRODUCT: "NVIDIA-L4-SHARED", MEMORY: "23034"}, {"product": "NVIDIA-L4-SHARED"}, "NVIDIA-L4-SHARED"),
    "its resource": ({MEMORY: "23034"}, {"resource": "nvidia.com/gpu.shared"}, "nvidia.com/gpu.shared"),
    "a slice's resource": ({f"{SLICE}.memory": "9728"}, {"resource": f"{SLICE}.shared"}, f"{SLICE}.shared"),
}  # fmt: skip
"""What tells that a GPU is shared out: a node's labels, the pool's accelerator, and what is named."""


@pytest.mark.parametrize("replicas", [None, "", "0", "1", "four", "-2"])
@pytest.mark.parametrize("case", UNTOLD)
def test_a_share_that_no_label_tells_is_not_planned(case: str, replicas: str | None) -> None:
    labels, accelerator, named = UNTOLD[case]
    resource = accelerator.get("resource", "nvidia.com/gpu")
    told = {} if replicas is None else {f"{resource.removesuffix('.shared')}.replicas": replicas}
    refused = found([node("a", {**labels, **told}, resource=resource)], **accelerator)
    sentence = f"{named} is shared out, and no node tells its share: say accelerator.memory"
    assert refused == Refused("DeviceUnknown", sentence)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ([], "no node tells its share"),
        ([LARGE], "no node tells its share"),
        (None, "this operator may not list nodes to learn its share"),
    ],
    ids=["no nodes", "another", "none listed"],
)
def test_a_shared_product_that_no_node_has_is_not_planned(seen: list[Object] | None, why: str) -> None:
    sentence = f"NVIDIA-L4-SHARED is shared out, and {why}: say accelerator.memory"
    assert found(seen, product="NVIDIA-L4-SHARED") == Refused("DeviceUnknown", sentence)


@pytest.mark.parametrize("told", [{"memory": "6Gi"}, {}], ids=["by its spec", "by its nodes"])
def test_a_part_of_a_product_that_is_known_is_planned_with_its_cores(told: Object) -> None:
    device = found([node("a", SHARED_L4)], product="NVIDIA-L4-SHARED", **told)
    assert device.memory.cores == find_gpu("L4").device.cores
    assert found([node("a", SHARED_L4)], **told).memory.cores == ANY_CORES, "another node may come"


def test_nodes_that_say_nothing_are_planned_by_their_product_and_else_not_at_all() -> None:
    assert mebibytes([node("a", {PRODUCT: "NVIDIA-A30"})]) == find_gpu("A30").memory_mib
    refused = found([node("a", {PRODUCT: "NVIDIA-NOBODY-KNOWS"})])
    assert isinstance(refused, Refused)
    assert (refused.reason, "no label nvidia.com/gpu.memory" in refused.message) == ("DeviceUnknown", True)


def test_an_operator_that_may_not_list_nodes_says_so() -> None:
    refused = found(None)
    assert isinstance(refused, Refused)
    assert "may not list nodes" in refused.message
    assert isinstance(found(None, memory="24Gi"), Device)


def test_a_small_node_that_comes_changes_the_plan_and_its_going_does_not_change_it_back() -> None:
    before = found([LARGE, SMALL])
    status = {
        "plan": {
            "deviceBytes": before.memory.memory_bytes,
            "placement": before.placement,
            "device": "NVIDIA-A30 (node labels)",
        }
    }
    assert found([LARGE], status=status) == before
    assert found([], status=status) == before
    assert found(None, status=status) == before
    smaller = node("smaller", {MEMORY: "16384"})
    assert found([LARGE, smaller], status=status).memory.memory_bytes == 16 * GIB


def test_another_selector_forgets_the_small_node() -> None:
    before = found([LARGE, SMALL])
    status = {"plan": {"deviceBytes": before.memory.memory_bytes, "placement": before.placement}}
    assert found([LARGE, SMALL], ADMITS_ONLY_LARGE["selector"], status).memory.memory_bytes >> 20 == 81_559


def test_a_worker_runs_on_one_device() -> None:
    refused = found([LARGE], count=2)
    assert (refused.reason, "count is 2" in refused.message) == ("UnsupportedCount", True)


T4 = node("old", {MEMORY: "15360", PRODUCT: "Tesla-T4", "zone": "c"})
CAPABILITY_MAJOR = "nvidia.com/gpu.compute.major"
UNNAMED = {MEMORY: "24576", CAPABILITY_MAJOR: "7", "nvidia.com/gpu.compute.minor": "5"}
MAJOR_ALONE = {MEMORY: "49152", CAPABILITY_MAJOR: "7", PRODUCT: "NVIDIA-X0"}
TOO_OLD: dict[str, tuple[list[Object] | None, Object, str]] = {
    "the product that is asked for": (None, {"product": "Tesla-T4"}, "accelerator.product: Tesla-T4: "),
    "the same, whatever its memory": ([], {"product": "NVIDIA-V100", "memory": "80Gi"}, "NVIDIA-V100: "),
    "a shared one": ([], {"product": "Tesla-T4-SHARED"}, "accelerator.product: Tesla-T4-SHARED: "),
    "one that only drivers name": ([], {"product": "Quadro-RTX-8000"}, "accelerator.product: Quadro-RTX-8000: "),
    "all that the nodes have": ([T4, node("cpu", gpus=0)], {}, "has another GPU than node old's Tesla-T4: "),
    "the same, whatever memory is told": ([T4], {"memory": "24Gi"}, "has another GPU than node old's Tesla-T4: "),
    "all that they have, by their labels": ([node("new", UNNAMED)], {}, "node new's nvidia.com/gpu: "),
    "the same, by the major alone": ([node("new", MAJOR_ALONE)], {}, "node new's NVIDIA-X0: "),
}
"""Nodes, the pool's accelerator, and how the sentence begins."""


@pytest.mark.parametrize("case", TOO_OLD)
def test_where_there_is_no_gpu_but_older_than_the_engines_oldest_it_is_refused(case: str) -> None:
    seen, accelerator, words = TOO_OLD[case]
    refused = found(seen, **accelerator)
    assert isinstance(refused, Refused)
    assert refused.reason == "UnsupportedGPU"
    assert words in refused.message
    assert "compute capability 7." in refused.message
    assert "the CUDA engine runs on 8.0 and later ones" in refused.message


def test_the_refusal_names_the_first_node_in_whatever_order_nodes_are_listed() -> None:
    seen = [node("older", {PRODUCT: "Tesla-T4"}), T4, node("oldest", {PRODUCT: "Tesla-V100-SXM2-16GB"})]
    assert found(seen) == found(seen[::-1])
    assert "node old's" in found(seen).message


PLANNED: dict[str, tuple[list[Object], Object | None, Object, int, tuple[str, ...]]] = {
    "beside a newer one": ([LARGE, T4], None, {}, 81_559, ("Tesla-T4",)),
    "beside one of which the major alone is told": ([LARGE, node("q", MAJOR_ALONE)], None, {}, 81_559, ("NVIDIA-X0",)),
    "beside one whose memory is told": ([LARGE, T4], None, {"memory": "24Gi"}, 24_576, ("Tesla-T4",)),
    "kept off by a selector": ([LARGE, T4], ADMITS_ONLY_LARGE["selector"], {}, 81_559, ()),
    "kept off by the product": ([LARGE, T4], None, {"product": "NVIDIA-H100-80GB-HBM3"}, 81_559, ()),
    "sliced, which the old one is not": ([T4, node("mig", {f"{SLICE}.memory": "9856"}, resource=SLICE)], None,
        {"resource": SLICE}, 9856, ()),
    "of the oldest that is run": ([node("a", {PRODUCT: "NVIDIA-A30"})], None, {}, find_gpu("A30").memory_mib, ()),
    "its labels outdo its name": (
        [node("b", {**UNNAMED, PRODUCT: "T4", CAPABILITY_MAJOR: "9"})], None, {}, 24_576, ()),
    "not known by name": ([node("c", {MEMORY: "9000", PRODUCT: "NVIDIA-X1"})], None, {}, 9_000, ()),
}  # fmt: skip
"""Nodes, the pool's template and accelerator, the MiB that are planned, and the products that are left out."""


@pytest.mark.parametrize("case", PLANNED)
def test_a_pool_is_planned_by_the_gpus_that_serve_and_older_ones_are_left_out(case: str) -> None:
    seen, template, accelerator, planned, left_out = PLANNED[case]
    device = found(seen, template, **accelerator)
    assert isinstance(device, Device), device
    assert (device.memory.memory_bytes >> 20, device.left_out) == (planned, left_out)


@pytest.mark.parametrize("accelerator", [{}, {"memory": "24Gi"}], ids=["by its nodes", "by its spec"])
def test_a_plan_outlives_the_last_gpu_that_serves_for_as_long_as_the_pool_asks_for_the_same_nodes(
    accelerator: Object,
) -> None:
    before = found([LARGE], **accelerator)
    after = found([T4], status=status_of(before), **accelerator)
    assert (after.memory.memory_bytes, after.left_out) == (before.memory.memory_bytes, ("Tesla-T4",))
    only_old = {"nodeSelector": {"zone": "c"}}
    assert found([LARGE, T4], only_old, status_of(before), **accelerator).reason == "UnsupportedGPU"


def test_memory_that_the_spec_no_longer_says_is_not_taken_for_that_of_nodes() -> None:
    told = found([LARGE], memory="24Gi")
    plan = {"deviceBytes": told.memory.memory_bytes, "placement": told.placement, "device": "nvidia.com/gpu (spec)"}
    assert found([LARGE], status={"plan": plan}).memory.memory_bytes >> 20 == 81_559


DRIVER_NAMES = (
    "Tesla P4",
    "Tesla P40",
    "Tesla P100-PCIE-12GB",
    "Tesla P100-PCIE-16GB",
    "Tesla P100-SXM2-16GB",
    "Tesla V100-DGXS-16GB",
    "Tesla V100-DGXS-32GB",
    "Tesla V100-FHHL-16GB",
    "Tesla V100-PCIE-16GB",
    "Tesla V100-PCIE-32GB",
    "Tesla V100-SXM2-16GB",
    "Tesla V100-SXM2-32GB",
    "Tesla V100-SXM3-32GB",
    "Tesla V100S-PCIE-32GB",
    "Tesla T4",
    "Quadro RTX 6000",
    "Quadro RTX 8000",
    "TITAN RTX",
    "NVIDIA TITAN RTX",
)
"""As nvidia-smi prints what is too old; GPU feature discovery puts a dash for each blank."""


@pytest.mark.parametrize("ending", ["", "-SHARED"])
@pytest.mark.parametrize("name", DRIVER_NAMES)
def test_an_old_gpu_that_its_label_names_as_drivers_do_gets_no_worker_and_no_plan(name: str, ending: str) -> None:
    product = name.replace(" ", "-") + ending
    here = node("old", {MEMORY: "32768", PRODUCT: product})
    assert not admits(worker_affinity(read_pool(gpu_pool())), here)
    assert found([here, LARGE]).left_out == (product,)
    assert found([here]).reason == found([], product=product).reason == "UnsupportedGPU"


@pytest.mark.parametrize(
    "product",
    [None, "NVIDIA-H200", "NVIDIA-X1", "T4", "Tesla-T4", "Quadro-RTX-8000-SHARED", "NVIDIA-L4", "NVIDIA-A10G-SHARED"],
)
@pytest.mark.parametrize("major", [None, "", "6", "7", "8", "9", "12", "x"])
@pytest.mark.parametrize("minor", [None, "", "0", "5", "6", "9", "x"])
@pytest.mark.parametrize("refused", [(), SHARES_LITTLE], ids=["narrow", "wide"])
def test_a_node_that_workers_are_kept_off_is_not_planned_with(
    product: str | None, major: str | None, minor: str | None, refused: tuple[str, ...]
) -> None:
    told = {PRODUCT: product, CAPABILITY_MAJOR: major, "nvidia.com/gpu.compute.minor": minor}
    here = node("here", {MEMORY: "16384", **{key: value for key, value in told.items() if value is not None}})
    if not admits(worker_affinity(read_pool(gpu_pool()), refused), here):
        assert found([here], refused=refused).reason in ("UnsupportedGPU", "UnsupportedModel")
        assert found([here, LARGE], refused=refused).memory.memory_bytes >> 20 == 81_559


OFF = {
    "by the label of its capability": {CAPABILITY_MAJOR: "7", "nvidia.com/gpu.compute.minor": "5"},
    **{name: {PRODUCT: name} for name in OLD_PRODUCTS},
    "a shared one": {PRODUCT: "Tesla-T4-SHARED"},
}
ON = {
    "a node without labels": {},
    "the oldest that is run": {CAPABILITY_MAJOR: "8", "nvidia.com/gpu.compute.minor": "0"},
    "two digits": {CAPABILITY_MAJOR: "10"},
    "by its product": {PRODUCT: "NVIDIA-H200"},
}


AFFINITIES: dict[str, Object | None] = {
    "nothing": None,
    "a label": affine({"key": "zone", "operator": "DoesNotExist"}),
    "a name": affine(fields=[{"key": "metadata.name", "operator": "In", "values": ["n"]}]),
}


@pytest.mark.parametrize("template", AFFINITIES.values(), ids=AFFINITIES)
def test_workers_are_kept_off_gpus_that_are_too_old_whatever_the_template_asks(template: Object | None) -> None:
    affinity = worker_affinity(read_pool(gpu_pool(template=template)))
    assert not [case for case, labels in OFF.items() if admits(affinity, node("n", labels))]
    assert [case for case, labels in ON.items() if admits(affinity, node("n", labels))] == list(ON)


ADA = {CAPABILITY_MAJOR: "8", "nvidia.com/gpu.compute.minor": "9"}
TOO_NARROW = {
    "Ada by its capability": ADA,
    "Ampere by its capability": {**ADA, "nvidia.com/gpu.compute.minor": "6"},
    "Blackwell by its capability": {CAPABILITY_MAJOR: "12", "nvidia.com/gpu.compute.minor": "0"},
    "the product alone": {PRODUCT: "NVIDIA-L40S"},
    "a shared one": {PRODUCT: "NVIDIA-L4-SHARED"},
    "both": {**ADA, PRODUCT: "NVIDIA-L4"},
}


@pytest.mark.parametrize("template", AFFINITIES.values(), ids=AFFINITIES)
def test_workers_are_kept_off_gpus_that_do_not_run_the_model_and_off_no_other(template: Object | None) -> None:
    pool = read_pool(gpu_pool(template=template))
    wide, narrow = worker_affinity(pool, SHARES_LITTLE), worker_affinity(pool)
    for labels in (*OFF.values(), *TOO_NARROW.values()):
        assert not admits(wide, node("n", labels)), labels
    for labels in ON.values():
        assert admits(wide, node("n", labels)), labels
    for labels in TOO_NARROW.values():
        assert admits(narrow, node("n", labels)), labels


@pytest.mark.parametrize("ending", ["", "-SHARED"])
@pytest.mark.parametrize("name", sorted(set(PRODUCTS) - set(OLD_PRODUCTS)))
def test_a_gpu_that_its_label_names_as_drivers_do_is_kept_away_and_left_out(name: str, ending: str) -> None:
    here = node("n", {MEMORY: "32768", PRODUCT: name + ending})
    assert not admits(worker_affinity(read_pool(gpu_pool()), SHARES_LITTLE), here)
    assert found([here, LARGE], refused=SHARES_LITTLE).unfit == (name + ending,)
    assert found([here], refused=SHARES_LITTLE).reason == "UnsupportedModel"
    assert found([here, LARGE]).unfit == ()


def test_of_every_gpu_that_is_known_to_share_little_the_product_is_kept_away() -> None:
    rows = {name: gpu for name in PRODUCTS if (gpu := row(name)) is not None}
    named = {gpu.name for gpu in rows.values()}
    assert {gpu.name for gpu in GPUS if gpu.compute_capability in SHARES_LITTLE} <= named
    assert {name: gpu.compute_capability for name, gpu in rows.items()}.items() <= PRODUCTS.items()


def test_an_affinity_keeps_all_that_it_says_beside() -> None:
    empty: Object = {"matchExpressions": [], "matchFields": []}
    given: Object = {
        "podAntiAffinity": {"x": 1},
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}],
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [empty]},
        },
    }
    assert off_gpus(given) == given, "a term that admits no node goes on admitting none"
    assert not admits(off_gpus(given, SHARES_LITTLE), node("n"))


def test_workers_on_cpus_have_the_templates_affinity_and_no_more() -> None:
    assert worker_affinity(read_pool(pool())) == {}


def test_the_products_that_workers_are_kept_off_are_all_that_are_known_to_be_too_old() -> None:
    assert {name.replace(" ", "-") for name in DRIVER_NAMES} == set(OLD_PRODUCTS)
    rows = {name: gpu for name in OLD_PRODUCTS if (gpu := row(name)) is not None}
    assert {gpu.name for gpu in rows.values()} == {gpu.name for gpu in GPUS if gpu_refusals(gpu.compute_capability)}
    assert {name: gpu.compute_capability for name, gpu in rows.items()}.items() <= OLD_PRODUCTS.items()


def row(name: str) -> GPU | None:
    try:
        return find_gpu(name)
    except ValueError:
        return None
