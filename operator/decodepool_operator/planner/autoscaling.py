"""How many workers use asks for. What has to be remembered is in the pool's status, so a new operator knows it too.

A worker that does not answer is unknown, not empty: it is taken to be as full as is aimed at, and while there is one,
nothing shrinks. So is one that was ready and is not: its sessions may be alive, and it would be the first to go. One
that never was holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from decodepool_sizing.manifest import Autoscaling

from decodepool_operator import times
from decodepool_operator.planner.census import Census
from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.state import Object
from decodepool_operator.texts import count

OTHER_AUTOSCALERS = ("kube-controller-manager", "keda")
"""Field managers that write `/scale` for an autoscaler: the HPA's controller, and KEDA."""


@dataclass(frozen=True)
class Wish:
    """`replicas` is what is to be written through `/scale`, None to leave it as it is. `why`: why it is written, or
    why more are kept than are needed; without numbers of sessions, so that it stays the same while they move.
    """

    replicas: int | None
    status: Object | None
    due: datetime | None = None
    conflict: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class _Need:
    """Workers that the sessions need, within the bounds, and the sentence that says how that was computed. `sure`:
    every worker and gateway has told.
    """

    replicas: int
    sure: bool
    told: str


def wish(pool: Pool, workers: Census, sessions_per_worker: int | None, queued: int | None, now: datetime) -> Wish:
    """Return how many workers there should be, and what is to be remembered of it."""
    scaling, current = pool.spec.autoscaling, pool.spec.replicas
    if scaling is None:
        return Wish(None, None)
    if pool.spec.suspend or sessions_per_worker is None:
        return _idle("suspended" if pool.spec.suspend else "there is no plan of what a worker holds yet")
    other = other_autoscaler(pool)
    if other is not None:
        return Wish(None, {"message": f"{other} writes replicas too: nothing is written beside it"}, conflict=other)
    if current == 0:
        return Wish(None, {"wantedReplicas": 0, "message": "replicas is 0: off until it is 1 or more"})
    if current < scaling.min_replicas or current > scaling.max_replicas:
        bounded = min(max(current, scaling.min_replicas), scaling.max_replicas)
        why = "brought within minReplicas and maxReplicas"
        return Wish(bounded, {"wantedReplicas": bounded, "message": why}, why=why)
    return _by_use(pool, _needed(scaling, workers, sessions_per_worker, queued), scaling, now)


def _idle(why: str) -> Wish:
    return Wish(None, {"message": f"{why}: nothing is scaled"})


def _by_use(pool: Pool, need: _Need, scaling: Autoscaling, now: datetime) -> Wish:
    current, wanted = pool.spec.replicas, need.replicas
    if wanted > current:
        why = f"use is over {scaling.target_utilization_percent} % of the sessions of {count(current, 'worker')}"
        status = {"wantedReplicas": wanted, "message": f"{need.told}; scaling up from {current}"}
        return Wish(wanted, status, why=why)
    if wanted == current:
        return Wish(None, {"wantedReplicas": wanted, "message": f"{need.told}; as many as there are"})
    if not need.sure:
        why = "nothing shrinks before every worker and gateway has answered"
        return Wish(None, {"wantedReplicas": current, "message": f"{need.told}; {why}"}, why=why)
    return _shrinking(pool, need, scaling.scale_down_delay_seconds, now)


def other_autoscaler(pool: Pool) -> str | None:
    """Return who else scales the pool, by what the API server has noted of the last writer of replicas."""
    for entry in pool.raw["metadata"].get("managedFields") or ():
        manager = str(entry.get("manager"))
        holds = "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        if holds and entry.get("subresource") == "scale" and manager.startswith(OTHER_AUTOSCALERS):
            return manager
    return None


def _needed(scaling: Autoscaling, workers: Census, sessions_per_worker: int, queued: int | None) -> _Need:
    known = [each.report for each in workers.ready if each.report is not None]
    unknown = len(workers.started) - len(known)
    active = sum(report.sessions_active for report in known)
    aimed = sessions_per_worker * scaling.target_utilization_percent
    needed = ceil((100 * (active + (queued or 0)) + unknown * aimed) / aimed)
    replicas = min(max(needed, scaling.min_replicas), scaling.max_replicas)
    waiting = "an unknown number" if queued is None else queued
    full = f", {unknown} that did not tell taken for full" if unknown else ""
    bound = "" if needed == replicas else f" ({'maxReplicas' if needed > replicas else 'minReplicas'}, not {needed})"
    told = (
        f"{count(active, 'session')} in use and {waiting} waiting{full}: {count(replicas, 'worker')}{bound} wanted, "
        f"at {scaling.target_utilization_percent} % of {count(sessions_per_worker, 'session')} each"
    )
    return _Need(replicas, not unknown and queued is not None, told)


def _shrinking(pool: Pool, need: _Need, delay_seconds: int, now: datetime) -> Wish:
    """Shrink once less has been enough for the whole delay, and then to the most that was needed meanwhile."""
    kept = pool.status.get("autoscaling") or {}
    since, most = times.read(kept.get("belowSince")), kept.get("wantedReplicas")
    if since is None or not isinstance(most, int) or most >= pool.spec.replicas:
        since, most = now, need.replicas
    most = max(most, need.replicas)
    due = since + timedelta(seconds=delay_seconds)
    if now >= due:
        why = f"no more were needed for {delay_seconds} s"
        return Wish(most, {"wantedReplicas": most, "message": f"{need.told}; scaling down, {why}"}, why=why)
    message = f"{need.told}; scaling down to {most} at {times.written(due)} unless more are needed before"
    status = {"wantedReplicas": most, "belowSince": times.written(since), "message": message}
    why = f"fewer workers would do, and are taken once that has lasted {delay_seconds} s"
    return Wish(None, status, due=due, why=why)
