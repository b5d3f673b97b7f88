"""How many workers use asks for. What has to be remembered is in the pool's status, so a new operator knows it too.

A worker that does not answer is unknown, not empty: it is taken to be as full as is aimed at, and while there is one,
nothing shrinks. So is one that was ready and is not: its sessions may be alive, and it would be the first to go. One
that never was holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from decodepool_operator import times
from decodepool_operator.planner.census import Census
from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.state import Object

OTHER_AUTOSCALERS = ("kube-controller-manager", "keda")
"""Field managers that write `/scale` for an autoscaler: the HPA's controller, and KEDA."""


@dataclass(frozen=True)
class Wish:
    """`replicas` is what is to be written through `/scale`, None to leave it as it is."""

    replicas: int | None
    status: Object | None
    due: datetime | None = None
    conflict: str | None = None


NO_WISH = Wish(None, None)


def wish(pool: Pool, workers: Census, sessions_per_worker: int | None, queued: int | None, now: datetime) -> Wish:
    """Return how many workers there should be, and what is to be remembered of it."""
    scaling, current = pool.spec.autoscaling, pool.spec.replicas
    if scaling is None or pool.spec.suspend or sessions_per_worker is None:
        return NO_WISH
    other = other_autoscaler(pool)
    if other is not None:
        return Wish(None, {"message": f"{other} writes replicas too: nothing is written beside it"}, conflict=other)
    if current == 0:
        return Wish(None, {"wantedReplicas": 0, "message": "replicas is 0: off until it is 1 or more"})
    if current < scaling.min_replicas or current > scaling.max_replicas:
        bounded = min(max(current, scaling.min_replicas), scaling.max_replicas)
        return Wish(bounded, {"wantedReplicas": bounded, "message": "brought within minReplicas and maxReplicas"})
    return _by_use(pool, workers, sessions_per_worker, queued, now)


def _by_use(pool: Pool, workers: Census, sessions_per_worker: int, queued: int | None, now: datetime) -> Wish:
    scaling, current = pool.spec.autoscaling, pool.spec.replicas
    assert scaling is not None  # its caller has looked
    wanted, sure = _needed(pool, workers, sessions_per_worker, queued)
    if wanted > current:
        return Wish(wanted, {"wantedReplicas": wanted, "message": f"more sessions than {current} workers should hold"})
    if wanted == current:
        return Wish(None, {"wantedReplicas": wanted, "message": "as many as are needed"})
    if not sure:
        return Wish(
            None, {"wantedReplicas": current, "message": "not every worker and gateway has answered: nothing shrinks"}
        )
    return _shrinking(pool, wanted, scaling.scale_down_delay_seconds, now)


def other_autoscaler(pool: Pool) -> str | None:
    """Return who else scales the pool, by what the API server has noted of the last writer of replicas."""
    for entry in pool.raw["metadata"].get("managedFields") or ():
        manager = str(entry.get("manager"))
        holds = "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        if holds and entry.get("subresource") == "scale" and manager.startswith(OTHER_AUTOSCALERS):
            return manager
    return None


def _needed(pool: Pool, workers: Census, sessions_per_worker: int, queued: int | None) -> tuple[int, bool]:
    """Return the workers that the sessions need, within bounds, and whether all was known."""
    scaling = pool.spec.autoscaling
    assert scaling is not None  # its caller has looked
    known = [each.report for each in workers.ready if each.report is not None]
    unknown = len(workers.started) - len(known)
    sessions = sum(report.sessions_active for report in known) + (queued or 0)
    aimed = sessions_per_worker * scaling.target_utilization_percent
    needed = ceil((100 * sessions + unknown * aimed) / aimed)
    return min(max(needed, scaling.min_replicas), scaling.max_replicas), not unknown and queued is not None


def _shrinking(pool: Pool, wanted: int, delay_seconds: int, now: datetime) -> Wish:
    """Shrink once less has been enough for the whole delay, and then to the most that was needed meanwhile."""
    kept = pool.status.get("autoscaling") or {}
    since, most = times.read(kept.get("belowSince")), kept.get("wantedReplicas")
    if since is None or not isinstance(most, int) or most >= pool.spec.replicas:
        since, most = now, wanted
    most = max(most, wanted)
    due = since + timedelta(seconds=delay_seconds)
    if now >= due:
        return Wish(most, {"wantedReplicas": most, "message": f"{most} have been enough for {delay_seconds} s"})
    message = f"{most} would be enough: scaling down once that has lasted {delay_seconds} s"
    return Wish(None, {"wantedReplicas": most, "belowSince": times.written(since), "message": message}, due=due)
