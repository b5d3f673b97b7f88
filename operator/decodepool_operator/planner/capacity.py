"""What each worker of a pool holds, and what its pod must be given for that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil

from decodepool_sizing.capacity import CapacityPlan, Demand, plan_capacity
from decodepool_sizing.devices import PROCESS_BASE_BYTES, DeviceMemory, cpu_memory
from decodepool_sizing.errors import BadDemand, CannotFit
from decodepool_sizing.facts import ModelFacts
from decodepool_sizing.kv import KVType
from decodepool_sizing.quantities import exact_bytes
from decodepool_sizing.session_bytes import kv_types
from decodepool_sizing.support import refused_capabilities, run_kv_types, shape_refusals
from decodepool_sizing.workspace import STEP_ROWS

from decodepool_operator.planner.devices import Device, Refused, find_device, resource_of
from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.quantities import amount
from decodepool_operator.planner.state import Object
from decodepool_operator.planner.templates import refused_template

DEFAULT_CPU_SESSIONS = 8
"""Sessions of a CPU worker that is told neither how many nor how much memory: what `decodepool serve` takes too."""

GPU_HOST_BYTES = 4 << 30
"""Host memory of a GPU worker: the interpreter, the CUDA libraries, staging for the weights as they are loaded."""

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Capacity:
    """A plan that fits. `memory_bytes` is what a worker is told to use; `pod_bytes`, its pod's request and limit.

    `resource` is what it asks Kubernetes for, None on CPUs; `device` is for people. `placement`, `left_out` and `unfit`
    as in `Device`. `refused`: the compute capabilities on which the engine does not run the model.
    """

    plan: CapacityPlan
    memory_bytes: int
    pod_bytes: int
    resource: str | None
    device: str
    placement: str | None = None
    left_out: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def planned_for(pool: Pool, facts: ModelFacts, seen: tuple[Object, ...] | None) -> Capacity | Refused:
    """Plan a worker of the pool, beside whatever it runs. `Refused` too where its engine does not run the model, or the
    pool's template cannot be used.
    """
    refusal = refused_model(pool, facts)
    if refusal:
        return Refused("UnsupportedModel", refusal)
    return refused_template(pool) or find_capacity(pool, facts, seen)


def refused_model(pool: Pool, facts: ModelFacts) -> str | None:
    """Return why the workers' engine refuses a model; None where it runs it."""
    lines = facts.refusals[pool.kind]
    return lines[0] if lines else None


def find_capacity(pool: Pool, facts: ModelFacts, seen: tuple[Object, ...] | None) -> Capacity | Refused:
    """Plan a worker of the pool. Whatever cannot be is `Refused`, with the numbers."""
    run = run_kv_types(pool.kind)
    possible = [kind for kind in kv_types(facts.shape) if kind in run]
    if pool.spec.kv_type not in possible:
        message = f"this model's heads cannot be kept as {pool.spec.kv_type} here; possible are {', '.join(possible)}"
        return Refused("UnsupportedKVType", message)
    try:
        return _on_cpu(pool, facts) if pool.kind == "cpu" else _on_gpu(pool, facts, seen)
    except CannotFit as error:
        return Refused("CannotFit", f"{error}; {error.advice}")
    except BadDemand as error:
        return Refused(type(error).__name__, str(error))


def _on_gpu(pool: Pool, facts: ModelFacts, seen: tuple[Object, ...] | None) -> Capacity | Refused:
    kv_type = KVType(pool.spec.kv_type)
    device: Device | Refused = find_device(pool, seen, partial(shape_refusals, facts.shape, kv_type))
    if isinstance(device, Refused):
        return device
    host_bytes = _template_memory(pool)
    return Capacity(
        plan=plan_capacity(_demand(pool, facts, pool.spec.sessions_per_worker), device.memory),
        memory_bytes=device.memory.memory_bytes,
        pod_bytes=GPU_HOST_BYTES if host_bytes is None else host_bytes,
        resource=resource_of(pool),
        device=f"{device.memory.name} ({device.told_by})",
        placement=device.placement,
        left_out=device.left_out,
        unfit=device.unfit,
        refused=refused_capabilities(facts.shape, kv_type),
    )


def _on_cpu(pool: Pool, facts: ModelFacts) -> Capacity | Refused:
    """Memory is what the spec says, else what the template's limit leaves, else what the sessions need and as much
    again to remember closed ones.
    """
    sessions, pod_bytes = pool.spec.sessions_per_worker, _template_memory(pool)
    memory_bytes = pool.spec.accelerator.memory
    told_by = "spec"
    if memory_bytes is None and pod_bytes is not None:
        memory_bytes, told_by = max(0, pod_bytes - PROCESS_BASE_BYTES), "template"
    if memory_bytes is None:
        sessions = sessions or (None if pool.spec.cache_reserve else DEFAULT_CPU_SESSIONS)
        memory_bytes, told_by = _enough(_demand(pool, facts, sessions)), "what its sessions need"
    needed_bytes = memory_bytes + PROCESS_BASE_BYTES
    if pod_bytes is not None and pod_bytes < needed_bytes:
        limit = f"template.resources limits memory to {exact_bytes(pod_bytes)}"
        return Refused(
            "MemoryLimitTooSmall", f"{limit}, but {exact_bytes(needed_bytes)} are needed for accelerator.memory"
        )
    device: DeviceMemory = cpu_memory(memory_bytes, "a CPU worker")
    return Capacity(
        plan=plan_capacity(_demand(pool, facts, sessions), device),
        memory_bytes=memory_bytes,
        pod_bytes=pod_bytes or ceil(needed_bytes / MEBIBYTE) * MEBIBYTE,
        resource=None,
        device=f"cpu ({told_by})",
    )


def _demand(pool: Pool, facts: ModelFacts, sessions: int | None) -> Demand:
    return Demand(
        facts.shape,
        facts.weight_bytes[pool.kind],
        context_tokens=pool.spec.context_tokens,
        kv_type=KVType(pool.spec.kv_type),
        sessions=sessions,
        cache_reserve_bytes=pool.spec.cache_reserve,
        max_step_rows=STEP_ROWS[pool.kind],
        types=facts.types,
    )


def _enough(demand: Demand) -> int:
    sessions_bytes = (demand.sessions or 0) * demand.session_bytes
    reserve_bytes = demand.cache_reserve_bytes or sessions_bytes
    needed = PROCESS_BASE_BYTES + demand.fixed_bytes + reserve_bytes + max(sessions_bytes, demand.session_bytes)
    return ceil(needed / MEBIBYTE) * MEBIBYTE


def _template_memory(pool: Pool) -> int | None:
    """Return the memory that the template gives a worker's pod; ValueErrors were refused before."""
    resources = pool.spec.template.resources if pool.spec.template else None
    for part in ("limits", "requests"):
        given = ((resources or {}).get(part) or {}).get("memory")
        if given is not None:
            return int(amount(given))
    return None
