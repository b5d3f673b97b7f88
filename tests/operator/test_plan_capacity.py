"""What a pool's workers hold, what their pods get for it, and what is refused before any pod is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from decodepool_kernels.cuda.pages import KV_BITS
from decodepool_operator.planner.capacity import DEFAULT_CPU_SESSIONS, GPU_HOST_BYTES, Capacity, find_capacity
from decodepool_operator.planner.devices import Refused
from decodepool_operator.planner.plan import plan
from decodepool_operator.planner.pools import read_pool
from decodepool_operator.planner.quantities import amount, same_quantity
from decodepool_operator.planner.state import Object
from decodepool_operator.planner.templates import merged_resources, refused_template
from decodepool_sizing.capacity import Demand, plan_capacity
from decodepool_sizing.devices import PROCESS_BASE_BYTES, cpu_memory, gpu_memory
from decodepool_sizing.facts import ModelFacts
from decodepool_sizing.gpus import GPUS
from decodepool_sizing.support import GPU_KV_TYPES, GPU_VOCABULARY
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operator.pools import facts, gpu_pool, node, observed, pool
from tests.operator.simulation import START
from tests.sizing.models import llama_shape

KNOWN = facts()
MIB, GIB = 1 << 20, 1 << 30
REPLICAS = "nvidia.com/gpu.replicas"


def capacity(raw: Object) -> Capacity:
    found = find_capacity(read_pool(raw), KNOWN, ())
    assert isinstance(found, Capacity), found
    return found


def refused(raw: Object) -> Refused:
    found = find_capacity(read_pool(raw), KNOWN, ())
    assert isinstance(found, Refused), found
    return found


def test_a_gpu_worker_is_planned_as_the_command_line_plans_it() -> None:
    found = capacity(gpu_pool(sessionsPerWorker=None))
    demand = Demand(KNOWN.shape, KNOWN.weight_bytes["cuda"], 128)
    assert found.plan.sessions == plan_capacity(demand, gpu_memory(24 * GIB)).sessions
    assert (found.memory_bytes, found.pod_bytes, found.resource) == (24 * GIB, GPU_HOST_BYTES, "nvidia.com/gpu")


def test_a_cpu_worker_has_the_memory_of_the_spec_and_its_pod_the_process_beside_it() -> None:
    found = capacity(pool(accelerator={"type": "cpu", "memory": "1Gi"}))
    assert found.plan.usable_bytes == cpu_memory(GIB).usable_bytes
    assert found.pod_bytes == GIB + PROCESS_BASE_BYTES


def test_a_cpu_worker_takes_what_the_templates_limit_leaves() -> None:
    found = capacity(pool(template={"resources": {"limits": {"memory": "2Gi"}}}))
    assert (found.pod_bytes, found.memory_bytes) == (2 * GIB, 2 * GIB - PROCESS_BASE_BYTES)


def test_a_limit_that_the_spec_does_not_fit_into_is_refused() -> None:
    raw = pool(accelerator={"type": "cpu", "memory": "2Gi"}, template={"resources": {"limits": {"memory": "2Gi"}}})
    assert refused(raw).reason == "MemoryLimitTooSmall"


def test_a_cpu_worker_without_memory_gets_what_its_sessions_need() -> None:
    found = capacity(pool(sessionsPerWorker=None))
    assert found.plan.sessions == DEFAULT_CPU_SESSIONS
    assert found.plan.cache_bytes > 0
    assert found.pod_bytes % MIB == 0


def test_a_reserve_wins_and_is_refused_where_the_sessions_do_not_fit_into_it() -> None:
    demand = Demand(KNOWN.shape, KNOWN.weight_bytes["cuda"], 128)
    found = capacity(gpu_pool(sessionsPerWorker=None, cacheReserve=5 * demand.session_bytes + 1))
    assert found.plan.sessions == 5
    too_small = refused(gpu_pool(sessionsPerWorker=6, cacheReserve=5 * demand.session_bytes))
    assert (too_small.reason, str(6 * demand.session_bytes) in too_small.message) == ("CannotFit", True)


REFUSED = {
    "no room for the weights": (gpu_pool(accelerator={"type": "nvidia", "memory": "64Mi"}), "CannotFit"),
    "more sessions than fit": (
        gpu_pool(accelerator={"type": "nvidia", "memory": "656Mi"}, sessionsPerWorker=200),
        "CannotFit",
    ),
    "more context than the model's": (pool(contextTokens=257), "ContextTooLong"),
    "far more": (pool(contextTokens=1 << 31), "ContextTooLong"),
    "a type its heads cannot have": (pool(kvType="q8_0"), "UnsupportedKVType"),
    "a type the GPU's kernels do not keep": (gpu_pool(kvType="f32"), "UnsupportedKVType"),
    "a reserve beyond the device": (gpu_pool(cacheReserve="30Gi", sessionsPerWorker=None), "CannotFit"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_is_refused_with_its_numbers(name: str) -> None:
    raw, reason = REFUSED[name]
    found = refused(raw)
    assert found.reason == reason
    assert "\n" not in found.message
    assert any(letter.isdigit() for letter in found.message)


@pytest.mark.parametrize(
    ("product", "kv_type", "refused"),
    [
        ("NVIDIA-L4", "f16", True),
        ("NVIDIA-L4-SHARED", "f16", True),
        ("NVIDIA-L4", "q8_0", False),
        ("NVIDIA-H100-80GB-HBM3", "f16", False),
        ("nobody's", "f16", False),
    ],
)
@pytest.mark.parametrize("told", ["spec", "nodes"])
def test_heads_that_attention_has_no_room_for_on_the_gpu_are_refused(
    product: str, kv_type: str, refused: bool, told: str
) -> None:
    wide = replace(KNOWN, shape=llama_shape(256))
    seen = node("n", {"nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.product": product, REPLICAS: "2"})
    accelerator = {"type": "nvidia", "memory": "22Gi", "product": product} if told == "spec" else {"type": "nvidia"}
    raw = gpu_pool(kvType=kv_type, accelerator=accelerator)
    found = find_capacity(read_pool(raw), wide, (seen,))
    assert isinstance(found, Refused) == refused, found
    if isinstance(found, Refused):
        assert found.reason == "UnsupportedModel"
        where = "accelerator.product: " if told == "spec" else "node n's "
        assert f"{where}{product}: heads of 256 dimensions as f16: attention shares " in found.message


WIDE = replace(KNOWN, shape=llama_shape(256))
MEMORY, PRODUCT = "nvidia.com/gpu.memory", "nvidia.com/gpu.product"
H100 = node("h100", {MEMORY: "81559", PRODUCT: "NVIDIA-H100-80GB-HBM3"})
A100 = node("a100", {MEMORY: "40960", PRODUCT: "NVIDIA-A100-SXM4-40GB"})
L40S = node("l40s", {MEMORY: "46068", PRODUCT: "NVIDIA-L40S"})
L4 = node("l4", {MEMORY: "23034", PRODUCT: "NVIDIA-L4"})


def on_nodes(
    *seen: Object, known: ModelFacts = WIDE, before: Capacity | None = None, **spec: Any
) -> Capacity | Refused:
    raw = gpu_pool(**{"accelerator": {"type": "nvidia"}, **spec})
    if before is not None:
        last = {"deviceBytes": before.memory_bytes, "placement": before.placement, "device": before.device}
        raw["status"] = {"plan": last}
    return find_capacity(read_pool(raw), known, seen)


@pytest.mark.parametrize(
    ("seen", "accelerator", "mebibytes", "unfit"),
    [
        ([A100, L40S], {}, 40_960, ("NVIDIA-L40S",)),
        ([H100, L4, L40S], {}, 81_559, ("NVIDIA-L4", "NVIDIA-L40S")),
        ([L40S, H100], {"memory": "40Gi"}, 40_960, ("NVIDIA-L40S",)),
        ([L4, H100], {"product": "NVIDIA-H100-80GB-HBM3"}, 81_559, ()),
    ],
)
def test_a_model_is_planned_by_the_gpus_that_run_it_and_others_are_left_out(
    seen: list[Object], accelerator: Object, mebibytes: int, unfit: tuple[str, ...]
) -> None:
    found = on_nodes(*seen, accelerator={"type": "nvidia", **accelerator})
    assert isinstance(found, Capacity), found
    assert (found.memory_bytes >> 20, found.unfit) == (mebibytes, unfit)
    narrow = on_nodes(*seen, known=KNOWN, accelerator={"type": "nvidia", **accelerator})
    assert isinstance(narrow, Capacity), narrow
    assert narrow.unfit == ()


def test_a_plan_outlives_the_last_gpu_that_runs_the_model_and_is_forgotten_where_it_was_for_one_that_does_not() -> None:
    large, small = on_nodes(H100), on_nodes(L4, kvType="q8_0")
    assert isinstance(large, Capacity)
    assert isinstance(small, Capacity)
    after = on_nodes(L4, before=large)
    assert isinstance(after, Capacity), after
    assert (after.memory_bytes, after.unfit) == (large.memory_bytes, ("NVIDIA-L4",))
    beside = on_nodes(L4, H100, before=small)
    assert isinstance(beside, Capacity), beside
    assert beside.memory_bytes == large.memory_bytes
    for seen, told in (([L4], small), ([L4], None), ([L4, L40S], None)):
        refusal = on_nodes(*seen, before=told)
        assert isinstance(refusal, Refused)
        assert (refusal.reason, "node l4's NVIDIA-L4: heads of 256" in refusal.message) == ("UnsupportedModel", True)


def test_a_last_plan_that_names_no_gpu_speaks_for_none_that_would_run_the_model() -> None:
    """What runs on nodes that no label names would be rolled out to none."""
    ada = {MEMORY: "23034", "nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "9"}
    before = on_nodes(node("n", ada), kvType="q8_0")
    assert isinstance(before, Capacity)
    assert isinstance(on_nodes(node("n", ada), before=before), Refused)


def test_a_vocabulary_that_no_gpu_draws_from_is_refused() -> None:
    wide = replace(KNOWN, shape=replace(KNOWN.shape, vocabulary_size=GPU_VOCABULARY + 1))
    found = find_capacity(read_pool(gpu_pool()), wide, ())
    assert isinstance(found, Refused)
    assert (found.reason, "a vocabulary of 262145" in found.message) == ("UnsupportedModel", True)
    assert isinstance(find_capacity(read_pool(pool()), wide, ()), Capacity)


def test_types_of_keys_and_values_are_refused_here_as_the_gpus_kernels_refuse_them() -> None:
    assert {kind.value for kind in GPU_KV_TYPES} == set(KV_BITS)


@pytest.mark.parametrize("name", sorted(gpu.name for gpu in GPUS))
@pytest.mark.parametrize("missing", [-1, 0, 1])
def test_no_card_ever_holds_a_model_of_its_own_size(name: str, missing: int) -> None:
    """A07, a capacity that is negative, or rounded up to one session."""
    memory = next(gpu.memory_bytes for gpu in GPUS if gpu.name == name)
    heavy = replace(KNOWN, weight_bytes={"cpu": memory + missing, "cuda": memory + missing})
    raw = gpu_pool(accelerator={"type": "nvidia", "memory": memory}, sessionsPerWorker=None)
    assert isinstance(find_capacity(read_pool(raw), heavy, ()), Refused)


@settings(max_examples=200, deadline=None)
@given(
    memory=st.integers(1, 1 << 36),
    context=st.integers(1, 300),
    sessions=st.none() | st.integers(1, 256),
    reserve=st.none() | st.integers(1, 1 << 34),
    device=st.sampled_from(["cpu", "nvidia"]),
)
def test_a_plan_is_never_more_than_the_device_and_never_empty(
    memory: int, context: int, sessions: int | None, reserve: int | None, device: str
) -> None:
    raw = pool(
        accelerator={"type": device, "memory": memory}, contextTokens=context, sessionsPerWorker=sessions,
        cacheReserve=reserve,
    )  # fmt: skip
    found = find_capacity(read_pool(raw), KNOWN, ())
    if isinstance(found, Refused):
        return
    plan = found.plan
    assert plan.sessions >= 1
    assert plan.reserve_bytes == plan.sessions * plan.session_bytes
    assert (
        plan.weight_bytes + plan.workspace_bytes + plan.reserve_bytes + plan.cache_bytes <= plan.usable_bytes < memory
    )
    assert sessions is None or plan.sessions == sessions


def test_every_extended_resource_is_asked_for_as_it_is_limited() -> None:
    """A08, GPU requests that Kubernetes rejects: a request alone makes a pod that Kubernetes refuses for ever."""
    raw = gpu_pool(template={"resources": {"requests": {"nvidia.com/gpu": 1, "example.com/nic": "2"}}})
    merged = merged_resources(read_pool(raw), {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}})
    assert merged["limits"] == merged["requests"] == {"nvidia.com/gpu": "1", "example.com/nic": "2"}


BAD_RESOURCES: dict[str, tuple[Any, str]] = {
    "request and limit differ": (
        {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}},
        "request 1 and limit 2 differ",
    ),
    "another number than count": ({"limits": {"nvidia.com/gpu": "2"}}, "2 asked for, but accelerator.count is 1"),
    "request over limit": ({"requests": {"cpu": "2"}, "limits": {"cpu": "500m"}}, "request 2 is more than limit 500m"),
    "no quantity": ({"limits": {"memory": "much"}}, "'much' is not a quantity"),
    "less than nothing": ({"limits": {"cpu": "-1"}}, "less than nothing"),
}


@pytest.mark.parametrize("name", sorted(BAD_RESOURCES))
def test_resources_that_kubernetes_would_refuse_are_refused_once(name: str) -> None:
    resources, said = BAD_RESOURCES[name]
    found = refused_template(read_pool(gpu_pool(template={"resources": resources})))
    assert found is not None
    assert (found.reason, said in found.message) == ("InvalidResources", True), found


def test_a_cpu_pool_asks_for_no_gpu_and_no_volume_takes_a_name_of_the_pools() -> None:
    gpu = refused_template(read_pool(pool(template={"resources": {"limits": {"nvidia.com/gpu": 1}}})))
    volume = refused_template(read_pool(pool(template={"volumes": [{"name": "models", "emptyDir": {}}]})))
    assert gpu is not None
    assert volume is not None
    assert (gpu.reason, volume.reason) == ("InvalidResources", "InvalidTemplate")
    assert refused_template(read_pool(pool(template={"resources": {"requests": {"cpu": "1"}}}))) is None


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"limits": {"memory": "much"}}, "gateway.resources: memory: "),
        ({"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}, "request 2Gi is more than limit 1Gi"),
        ({"limits": {"nvidia.com/gpu": 1}}, "a gateway has no use for a GPU"),
    ],
)
def test_a_gateways_resources_are_refused_before_there_is_one(resources: Object, said: str) -> None:
    raw = pool(gateway={"resources": resources})
    found = refused_template(read_pool(raw))
    assert found is not None
    assert (found.reason, said in found.message) == ("InvalidResources", True), found
    told = {each["type"]: each["reason"] for each in plan(raw, observed(raw), START).status["conditions"]}
    assert told["CapacityPlanned"] == "InvalidResources"


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/models", True), ("/models/", True), ("models", True), ("/x/../keys", True), ("/models/lora", True),
        ("/keys/more", True), ("/tmp", True), ("/cache", True), ("/", True),
        ("/tmp/scratch", False), ("/cache/more", False), ("/modelsx", False), ("/srv/models", False),
    ],
)  # fmt: skip
def test_no_mount_takes_a_place_of_the_pools(path: str, own: bool) -> None:
    """The API server would refuse the Deployment, or the kubelet each pod."""
    template = {"volumes": [{"name": "x", "emptyDir": {}}], "volumeMounts": [{"name": "x", "mountPath": path}]}
    found = refused_template(read_pool(pool(template=template)))
    assert (found is not None) is own
    assert found is None or (found.reason, path in found.message) == ("InvalidTemplate", True)


@pytest.mark.parametrize(
    ("volumes", "said"),
    [
        ([{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}], "v: more than one of that name"),
        ([{"emptyDir": {}}], "each has to have a name"),
        ([{"name": 3, "emptyDir": {}}], "each has to have a name"),
        ([{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}], None),
    ],
)
def test_volumes_have_names_and_each_its_own(volumes: list[Object], said: str | None) -> None:
    """The API server refuses others as no object of their kind, with 500, as if it were the server's fault."""
    found = refused_template(read_pool(pool(template={"volumes": volumes})))
    assert (found and (found.reason, found.message)) == (said and ("InvalidTemplate", f"template.volumes: {said}"))


AMOUNTS = {"500m": 0.5, "1Gi": GIB, "1G": 10**9, "1e3": 1000, "2": 2, "1.5": 1.5, "100u": 1e-4}


@pytest.mark.parametrize("text", sorted(AMOUNTS))
def test_quantities_are_read_as_kubernetes_reads_them(text: str) -> None:
    assert float(amount(text)) == AMOUNTS[text]


def test_the_same_amount_is_the_same_however_it_is_written() -> None:
    assert same_quantity("1024Mi", "1Gi")
    assert same_quantity("2", 2)
    assert not same_quantity("1Gi", "1G")
    assert not same_quantity("a", "b")
