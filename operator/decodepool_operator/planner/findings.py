"""From a pool's situation to what is told of it: one function a condition."""

from __future__ import annotations

from decodepool_sizing.quantities import format_bytes
from decodepool_sizing.support import OLDEST_COMPUTE_CAPABILITY

from decodepool_operator.planner.capacity import Capacity, refused_model
from decodepool_operator.planner.census import sidecar_pods
from decodepool_operator.planner.conditions import Finding
from decodepool_operator.planner.devices import Refused, resource_of
from decodepool_operator.planner.measured import TOLERATED_PERCENT, differs
from decodepool_operator.planner.missing_pods import gateway_trouble_of, trouble_of
from decodepool_operator.planner.nodes import PRODUCT_LABEL
from decodepool_operator.planner.objects.model_files import model_name
from decodepool_operator.planner.situation import Situation
from decodepool_operator.planner.state import Object, Resolved, Unresolved
from decodepool_operator.planner.troubles import UNSCHEDULABLE, Trouble, condition_of
from decodepool_operator.texts import MAX_CHARACTERS, count

OUTDATED_DEFINITION = "the installed CRD"
"""How the shell's notice begins of a definition that is older than this operator."""


MOST_TOLD = 4
"""Fingerprints or products that a sentence names."""


def findings(seen: Situation, foreign: list[str], measured: Object | None) -> list[Finding]:
    """Return the seven conditions. `foreign`: children's names that others' objects have."""
    model, capacity = _model(seen), _capacity(seen)
    workers = _workers(seen)
    degraded = _degraded(seen, foreign, measured)
    return [
        _ready(seen, [model, capacity], foreign),
        model,
        capacity,
        workers,
        _waiting_for_gpu(seen),
        _draining(seen),
        degraded,
    ]


def _model(seen: Situation) -> Finding:
    found, trouble = seen.reading.resolution, trouble_of(seen)
    if isinstance(found, Unresolved):
        return Finding("ModelResolved", "False", found.reason, found.message)
    if not isinstance(found, Resolved):
        return Finding("ModelResolved", "Unknown", "Resolving", found.message)
    refused = refused_model(seen.pool, found.facts)
    if refused is not None:
        return Finding("ModelResolved", "False", _refusal_reason(refused), refused)
    if trouble is not None and "its sha256 is" in trouble.message:
        return Finding("ModelResolved", "False", "HashDiffers", trouble.message)
    shape, name = found.facts.shape, model_name(seen.pool)
    size = format_bytes(found.facts.file_bytes)
    what = f"{shape.architecture}, {shape.block_count} layers, {found.facts.quantization}, {size}"
    return Finding("ModelResolved", "True", "Resolved", f"{name}: {what}")


def _refusal_reason(line: str) -> str:
    if line.startswith("architecture"):
        return "UnsupportedArchitecture"
    return "UnsupportedTensor" if line.startswith("tensor") else "UnsupportedModel"


def _capacity(seen: Situation) -> Finding:
    found = seen.capacity
    if isinstance(found, Refused):
        return Finding("CapacityPlanned", "False", found.reason, found.message)
    if found is None:
        if seen.facts is not None and refused_model(seen.pool, seen.facts) is None:
            return Finding("CapacityPlanned", "Unknown", "Planning", "the model has just been read")
        return Finding("CapacityPlanned", "Unknown", "ModelNotResolved", "the model's shape is not known")
    return Finding("CapacityPlanned", "True", "Planned", _plan_sentence(found))


def _plan_sentence(found: Capacity) -> str:
    plan = found.plan
    sessions = f"{count(plan.sessions, 'session')} of {plan.context_tokens} tokens in {plan.kv_type}"
    planned = f"each worker holds {sessions}, limited by {plan.limited_by.value}; planned for {found.device}"
    reasons = {
        f"older than compute capability {OLDEST_COMPUTE_CAPABILITY}": found.left_out,
        "the engine does not run this model on them": found.unfit,
    }
    return "; ".join([planned, *(_left_out(products, why) for why, products in reasons.items() if products)])


def _left_out(products: tuple[str, ...], why: str) -> str:
    told, more = ", ".join(products[:MOST_TOLD]), len(products) - MOST_TOLD
    return f"nodes with {told}{f' and {more} more' if more > 0 else ''} are left out: {why}"


def _workers(seen: Situation) -> Finding:
    ready, wanted = len(seen.workers.ready), seen.wanted
    if ready:
        return Finding("WorkersAvailable", "True", "Available", f"{count(ready, 'worker')} ready, {wanted} wanted")
    if not wanted:
        reason = "Suspended" if seen.pool.spec.suspend else "NoReplicas"
        return Finding("WorkersAvailable", "False", reason, "no workers are wanted")
    if seen.planned is None:
        return Finding("WorkersAvailable", "False", "NotPlanned", "no worker is made before there is a plan")
    reason, message = _not_ready(seen)
    return Finding("WorkersAvailable", "False", reason, message)


def _not_ready(seen: Situation) -> tuple[str, str]:
    """Say what workers that are not ready are at."""
    trouble, workers = trouble_of(seen), seen.workers
    ready = len(workers.current_ready)
    have = f"{ready} of {seen.wanted} workers ready"
    if trouble is not None:
        return trouble.reason, f"{have}: {trouble.message}"
    if len(workers.alive) > len(workers.current):
        return "RollingOut", f"{have} with the present spec; {len(workers.alive) - len(workers.current)} of before"
    if len(workers.alive) > seen.wanted:
        return "ScalingDown", f"{len(workers.alive)} workers, {seen.wanted} wanted"
    return "Starting", f"{have}, {seen.wanted - ready} starting"


def _waiting_for_gpu(seen: Situation) -> Finding:
    if seen.pool.kind == "cpu":
        return Finding("WaitingForGPU", "False", "NoGPUNeeded", "workers run on CPUs")
    resource, trouble = resource_of(seen.pool), trouble_of(seen)
    if trouble is None or trouble.reason not in (UNSCHEDULABLE, "QuotaExceeded") or not _is_of_gpus(trouble, resource):
        return Finding("WaitingForGPU", "False", "NotWaiting", f"no worker waits for {resource}")
    if trouble.reason == UNSCHEDULABLE and seen.workers.draining:
        leaving = count(len(seen.workers.draining), "worker")
        return Finding("WaitingForGPU", "True", "WaitingForDrain", f"{leaving} drains before: {trouble.message}")
    return Finding("WaitingForGPU", "True", trouble.reason, trouble.message)


def _is_of_gpus(trouble: Trouble, resource: str) -> bool:
    """Say whether the scheduler or a quota names the pool's device: more GPUs help nobody who waits for CPUs, for a
    volume, or for a taint to go. What was cut from a long text may have named it.
    """
    told = trouble.message
    return resource in told or PRODUCT_LABEL in told or len(told) >= MAX_CHARACTERS


def _draining(seen: Situation) -> Finding:
    leaving = len(seen.workers.draining)
    if not leaving:
        return Finding("Draining", "False", "NotDraining", "no worker is emptied")
    late = [each for each in seen.workers.draining if each.overdue]
    if late:
        message = f"{count(len(late), 'worker')} not gone in time: is its node lost? `kubectl delete --force` frees it"
        return Finding("Draining", "True", "Overdue", message)
    seconds = seen.pool.spec.drain.timeout_seconds
    return Finding("Draining", "True", "Draining", f"{count(leaving, 'worker')} emptied, for up to {seconds} s")


def _degraded(seen: Situation, foreign: list[str], measured: Object | None) -> Finding:
    found = _refused_writes(seen, foreign) or _unlike_the_plan(seen, measured)
    if found is not None:
        return Finding("Degraded", "True", *found)
    return Finding("Degraded", "False", "AsPlanned", "nothing is out of order")


def _refused_writes(seen: Situation, foreign: list[str]) -> tuple[str, str] | None:
    if foreign:
        return "NameTaken", _taken(foreign)
    refused = _refused_objects(seen)
    if refused is not None:
        return refused
    if seen.wish.conflict is not None:
        message = (
            f"spec.autoscaling is set, but {seen.wish.conflict} scales the pool: remove one of them, "
            "and `kubectl scale` once to give replicas back"
        )
        return "TwoAutoscalers", message
    return None


def _refused_objects(seen: Situation) -> tuple[str, str] | None:
    if not seen.observed.faults:
        return None
    outdated = seen.observed.faults[0].startswith(OUTDATED_DEFINITION)
    return "CRDOutdated" if outdated else "ApplyFailed", _refusal(seen)


def _refusal(seen: Situation) -> str:
    """Return the API server's words. Where image volumes are off, it drops them, and then misses a volume's kind."""
    words = "; ".join(seen.observed.faults[:3])
    if seen.pool.spec.model.source.image is None or "must specify a volume type" not in words:
        return words
    return f"this cluster has no image volumes (Kubernetes has them from 1.35, or by its gate ImageVolume): {words}"


def _unlike_the_plan(seen: Situation, measured: Object | None) -> tuple[str, str] | None:
    trouble = trouble_of(seen)
    others = _other_bits(seen)
    if others is not None:
        return "WorkersDiffer", others
    if differs(measured):
        assert measured is not None  # `differs` has seen it
        percent = measured["differencePercent"]
        message = f"a worker's memory differs by {percent} % from the plan, more than {TOLERATED_PERCENT} %"
        return "MeasuredDiffers", message
    if seen.failing is not None and seen.failing.count > 1:
        return "WorkersFail", seen.failing.told()
    if seen.gateways_failing is not None and seen.gateways_failing.count > 1:
        return "GatewaysFail", seen.gateways_failing.told()
    if trouble is not None and seen.wanted:
        return trouble.reason, trouble.message
    return _missing_gateways(seen) if seen.wanted else None


def _missing_gateways(seen: Situation) -> tuple[str, str] | None:
    trouble = gateway_trouble_of(seen)
    if trouble is None:
        return None
    return trouble.reason, f"{_gateways_there(seen)}: {trouble.message}"


def _gateways_there(seen: Situation) -> str:
    pods = seen.gateways
    if not pods.ready:
        return "no gateway is ready"
    have = f"{len(pods.current_ready)} of {seen.pool.spec.gateway.replicas} gateways ready"
    before = len(pods.ready) - len(pods.current_ready)
    return f"{have} with the present spec, {before} of before" if before else have


def _other_bits(seen: Situation) -> str | None:
    """Return what is wrong where workers of the present template do not give the same bits: each serves as it should,
    but a stream that goes on elsewhere, or is drawn again, may be another.
    """
    pods: dict[str, list[str]] = {}
    for each in seen.workers.current_ready:
        if each.report is not None and each.report.fingerprint is not None:
            pods.setdefault(each.report.fingerprint, []).append(each.name)
    if len(pods) < 2:
        return None
    groups = sorted((-len(names), fingerprint, min(names)) for fingerprint, names in pods.items())
    told = [f"{fingerprint} from {count(-few, 'worker')} ({pod})" for few, fingerprint, pod in groups[:MOST_TOLD]]
    return f"workers have read other files, or run on other devices: their bits differ: {', '.join(told)}"


def _ready(seen: Situation, before: list[Finding], foreign: list[str]) -> Finding:
    in_the_way = _in_the_way(seen, before, foreign)
    if in_the_way is not None:
        return Finding("Ready", "False", *in_the_way)
    if not seen.wanted:
        pods = count(_ready_sidecars(seen), "pod")
        return Finding("Ready", "True", "SidecarsOnly", f"{pods} with a sidecar ready; replicas is 0: no other workers")
    sessions = seen.planned.plan.sessions * seen.wanted if seen.planned else 0
    said = f"{count(seen.wanted, 'worker')} ready for {count(sessions, 'session')}"
    return Finding("Ready", "True", "AllWorkersReady", said)


def _in_the_way(seen: Situation, before: list[Finding], foreign: list[str]) -> tuple[str, str] | None:
    """Return the first thing that keeps the pool from being ready."""
    if seen.pool.spec.suspend:
        return "Suspended", f"suspended: {_still_there(seen)}"
    blocked = next((each for each in before if each.status != "True"), None)
    if blocked is not None and blocked.status == "False":
        return blocked.reason, blocked.message
    if blocked is None and not seen.wanted and not _ready_sidecars(seen):
        return "NoReplicas", f"replicas is 0: {_still_there(seen)}"
    if foreign:
        return "NameTaken", _taken(foreign)
    if blocked is None and not seen.wanted:
        return None
    waits = (blocked.reason, blocked.message) if blocked else _pods_in_the_way(seen)
    refused = _refused_objects(seen) if waits else None
    return refused if refused is not None and refused[0] == "ApplyFailed" else waits


def _still_there(seen: Situation) -> str:
    there = len(seen.workers.alive) + len(seen.workers.draining)
    return f"{count(there, 'worker')} not gone yet" if there else "no workers run"


def _ready_sidecars(seen: Situation) -> int:
    pods = sidecar_pods(seen.pool, seen.observed.pods)
    return sum(condition_of(pod, "Ready").get("status") == "True" for pod in pods)


def _pods_in_the_way(seen: Situation) -> tuple[str, str] | None:
    if not seen.all_ready:
        return _not_ready(seen)
    return None if seen.gateways.current_ready else _gateway_trouble(seen)


def _gateway_trouble(seen: Situation) -> tuple[str, str]:
    missing = _missing_gateways(seen)
    if missing is not None:
        return missing
    if seen.gateways_failing is not None:
        return seen.gateways_failing.reason, f"{_gateways_there(seen)}: {seen.gateways_failing.told()}"
    return "GatewayStarting", f"{_gateways_there(seen)}: still starting"


def _taken(foreign: list[str]) -> str:
    return f"{', '.join(foreign)}: of that name, and not this pool's; it is left alone"
