"""`plan(pool, observed, now)`: everything that is to be done for a pool now. A pure function.

What is wanted follows from the spec, the model's facts and the nodes; what is done is the difference to what is there.
Planning again after it was done finds nothing to do, so any number of looks, at any time, is safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from decodepool_sizing.errors import BadManifest

from decodepool_operator.names import GATEWAY, MANAGER, MANAGER_LABEL, READER, WORKER, is_owned
from decodepool_operator.planner.cache_troubles import cache_late_at
from decodepool_operator.planner.conditions import TYPES, Finding, events_of, with_times
from decodepool_operator.planner.decisions import decisions
from decodepool_operator.planner.differences import needs_writing, stamped
from decodepool_operator.planner.findings import findings
from decodepool_operator.planner.measured import measured_status
from decodepool_operator.planner.objects.access import accounts
from decodepool_operator.planner.objects.model_files import CACHE, cache_claim, mounts_claim
from decodepool_operator.planner.objects.network import (
    client_service,
    disruption_budget,
    network_policy,
    pod_monitor,
    workers_service,
)
from decodepool_operator.planner.objects.reader_job import reader_job
from decodepool_operator.planner.pools import Pool, read_pool
from decodepool_operator.planner.rollout import FORGET_SECONDS, PLACE_WAIT
from decodepool_operator.planner.situation import Key, Situation, understand
from decodepool_operator.planner.state import Decision, Event, Object, Observed, Plan, Reference
from decodepool_operator.planner.status import status_of
from decodepool_operator.planner.troubles import stalls_at
from decodepool_operator.texts import count


def plan(raw: Object, observed: Observed, now: datetime) -> Plan:
    """Return what is to be done for a pool. One that is being deleted is left alone: its children go with it."""
    if raw["metadata"].get("deletionTimestamp"):
        return Plan(status=raw.get("status") or {})
    try:
        pool = read_pool(raw)
    except BadManifest as error:
        return untouched(raw, "InvalidSpec", "; ".join(error.faults[:3]), now)
    return _plan(understand(pool, observed, now))


def _plan(seen: Situation) -> Plan:
    wanted = [stamped(each) for each in _wanted(seen)]
    foreign = [f"{kind} {name}" for kind, name in map(_key, wanted) if _is_foreign(seen, (kind, name))]
    mine = [each for each in wanted if not _is_foreign(seen, _key(each))]
    planned = seen.planned
    before = seen.pool.status.get("measured")
    measured = measured_status(seen.workers.current_ready, planned, before) if planned else None
    found = findings(seen, foreign, measured)
    status = status_of(seen, found, measured)
    apply = tuple(each for each in mine if needs_writing(each, seen.live.get(_key(each))))
    return Plan(
        annotate=tuple(seen.costs),
        shrink=_shrink(seen),
        apply=apply,
        delete=tuple(_deletions(seen, {_key(each) for each in wanted})),
        replicas=seen.wish.replicas,
        status=status,
        writes_status=status != seen.pool.status,
        events=(*events_of(found, seen.pool.status), *_failure_events(seen), *_scaling_events(seen)),
        decisions=tuple(decisions(seen, apply)),
        look_again_seconds=_look_again(seen),
    )


def _wanted(seen: Situation) -> Iterator[Object]:
    """Yield the objects that should be there, in an order in which each finds what it needs."""
    pool = seen.pool
    yield from accounts(pool)
    yield client_service(pool)
    yield workers_service(pool)
    yield network_policy(pool, seen.observed.operator_namespace)
    yield disruption_budget(pool, WORKER)
    yield disruption_budget(pool, GATEWAY)
    if seen.observed.has_pod_monitors:
        yield pod_monitor(pool, seen.observed.scraping)
    if seen.reading.wants_job:
        yield reader_job(pool, seen.observed.images)
    claim = cache_claim(pool)
    if claim is not None:
        yield _as_bound(claim, seen.live.get(_key(claim)))
    if seen.gateway is not None and seen.worker is not None:
        yield seen.gateway
        yield seen.worker


def _shrink(seen: Situation) -> tuple[Reference, int] | None:
    if seen.live_worker is None or seen.shrinks_to is None:
        return None
    return _reference(seen.live_worker), seen.shrinks_to


def _as_bound(claim: Object, live: Object | None) -> Object:
    """Return a claim as it may still be asked for: of one that exists, nothing may change but its size upwards."""
    if live is None:
        return claim
    kept = {key: live["spec"][key] for key in ("accessModes", "storageClassName") if live["spec"].get(key)}
    return {**claim, "spec": {**claim["spec"], **kept}}


def _deletions(seen: Situation, wanted: set[Key]) -> Iterator[Reference]:
    for key, each in seen.live.items():
        if key not in wanted and _is_mine(seen.pool, each) and not _is_kept(seen, key):
            yield _reference(each)
    for member in (*seen.workers.failed, *seen.gateways.failed):
        yield Reference("v1", "Pod", member.name, member.uid)


def _is_kept(seen: Situation, key: Key) -> bool:
    """Say whether something stays that the spec, as it is, would not make.

    A spec that cannot be planned changes nothing of what runs but how many are too many: only `suspend` ends it. A
    reader Job stays until it has been read, or its failure is old; a cache, while the workers that are made mount it.
    """
    if key == ("Job", seen.pool.child(READER)):
        return not seen.reading.discards
    if key == ("PersistentVolumeClaim", seen.pool.child(CACHE)):
        return seen.live_worker is not None and mounts_claim(seen.live_worker, seen.pool.child(CACHE))
    deployments = {("Deployment", seen.pool.child(WORKER)), ("Deployment", seen.pool.child(GATEWAY))}
    return key in deployments and seen.live_worker is not None and not seen.pool.spec.suspend


def _is_mine(pool: Pool, live: Object) -> bool:
    labels = live["metadata"].get("labels") or {}
    return labels.get(MANAGER_LABEL) == MANAGER and is_owned(live, pool.uid) and not _is_going(live)


def _is_going(live: Object) -> bool:
    return bool(live["metadata"].get("deletionTimestamp"))


def _is_foreign(seen: Situation, key: Key) -> bool:
    live = seen.live.get(key)
    return live is not None and not is_owned(live, seen.pool.uid)


def _failure_events(seen: Situation) -> Iterator[Event]:
    for failing in (seen.failing, seen.gateways_failing):
        if failing is not None and failing.is_news:
            reason = f"{failing.component.capitalize()}Failed"
            yield Event("Warning", reason, f"{failing.pod}: {failing.reason}: {failing.message}")


def _scaling_events(seen: Situation) -> Iterator[Event]:
    """Yield an event where autoscaling writes replicas: told without sessions, so that what repeats is one Event."""
    before, after = seen.pool.spec.replicas, seen.wish.replicas
    if after is not None:
        reason = "ScaleUp" if after > before else "ScaleDown"
        yield Event("Normal", reason, f"from {before} to {count(after, 'worker')}: {seen.wish.why}")


def _look_again(seen: Situation) -> float | None:
    """Return the seconds until time alone could change the plan; None where only an event can."""
    seconds = [(moment - seen.now).total_seconds() for moment in _moments(seen) if moment and moment > seen.now]
    return max(1.0, min(seconds)) if seconds else None


def _moments(seen: Situation) -> Iterator[datetime | None]:
    yield seen.reading.due
    yield seen.wish.due
    yield seen.silence
    for failing in (seen.failing, seen.gateways_failing):
        if failing is not None:
            yield failing.next_try
            yield failing.last + timedelta(seconds=FORGET_SECONDS)
    if len(seen.workers.current) < len(seen.workers.alive):
        yield from (each.waits_since + PLACE_WAIT for each in seen.workers.alive if each.waits_since)
    yield from (each.late_at for each in seen.workers.draining)
    yield cache_late_at(seen)
    yield from (stalls_at(pod) for pod in seen.observed.pods)


def untouched(raw: Object, reason: str, message: str, now: datetime) -> Plan:
    """Return the plan for a pool that cannot be planned: nothing of it is touched, and it is said why."""
    before, generation = raw.get("status") or {}, raw["metadata"].get("generation", 0)
    found = [Finding(each, "False" if each == "Ready" else "Unknown", reason, message) for each in TYPES]
    status = {**before, "observedGeneration": generation, "conditions": with_times(found, before, generation, now)}
    kept = Decision("keep", f"{reason}: nothing is touched: {message}")
    events = events_of(found, before)
    return Plan(status=status, writes_status=status != before, events=events, decisions=(kept,))


def _key(each: Object) -> Key:
    return each["kind"], each["metadata"]["name"]


def _reference(live: Object) -> Reference:
    metadata = live["metadata"]
    return Reference(live["apiVersion"], live["kind"], metadata["name"], metadata.get("uid"))
