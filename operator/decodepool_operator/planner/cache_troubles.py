"""Where what keeps workers from starting is the claim of their cache: told apart from GPUs, and with the way out."""

from __future__ import annotations

from datetime import datetime

from decodepool_operator import times
from decodepool_operator.planner.objects.model_files import CACHE, SHARED
from decodepool_operator.planner.situation import Situation
from decodepool_operator.planner.state import Object
from decodepool_operator.planner.troubles import SLOW_CREATION, UNSCHEDULABLE, Trouble

ELSEWHERE = "volume node affinity conflict"
"""What the scheduler says of nodes that a bound volume cannot be mounted on."""

WAY_OUT = f"remove model.cache, or give it anew with a storage class that can be {SHARED}"


def cache_trouble(seen: Situation, trouble: Trouble | None) -> Trouble | None:
    """Return what a worker's trouble, which may be that it merely does not start, is about where it is the cache."""
    claim = _claim(seen)
    if claim is None or all(each.ready for each in seen.workers.alive):
        return None
    due = _late_at(claim)
    if due is not None and seen.now >= due and (trouble is None or _is_of_volumes(trouble)):
        words = f": {trouble.message}" if trouble else ""
        return Trouble("CacheNotBound", f"{_told(claim)} has no volume, see `kubectl describe pvc`; {WAY_OUT}{words}")
    if seen.wanted > 1 and SHARED not in _modes(claim) and trouble is not None and _is_left_out(trouble):
        told = f"{_told(claim)}, which workers on one node alone can mount, and {seen.wanted} are wanted"
        return Trouble("CacheNotShared", f"{told}: {WAY_OUT} and accessMode {SHARED}")
    return None


def cache_late_at(seen: Situation) -> datetime | None:
    """Return when the claim of the cache should have had its volume; None where it has one, or there is no claim."""
    claim = _claim(seen)
    return None if claim is None else _late_at(claim)


def _claim(seen: Situation) -> Object | None:
    pool = seen.pool
    return seen.live.get(("PersistentVolumeClaim", pool.child(CACHE))) if pool.spec.model.cache else None


def _late_at(claim: Object) -> datetime | None:
    made = times.read(claim["metadata"].get("creationTimestamp"))
    return made + SLOW_CREATION if made and claim.get("status", {}).get("phase") == "Pending" else None


def _modes(claim: Object) -> list[str]:
    found: list[str] = claim["spec"].get("accessModes") or []
    return found


def _told(claim: Object) -> str:
    storage = claim["spec"].get("storageClassName") or "the default class"
    return f"the claim {claim['metadata']['name']} of {storage} is {', '.join(_modes(claim))}"


def _is_of_volumes(trouble: Trouble) -> bool:
    """Say whether a pod has no node for want of a volume: it may wait for a GPU, and its claim for it."""
    return trouble.reason in (UNSCHEDULABLE, "SchedulerError") and "volume" in trouble.message.lower()


def _is_left_out(trouble: Trouble) -> bool:
    return trouble.reason == "ContainerCreating" or (trouble.reason == UNSCHEDULABLE and ELSEWHERE in trouble.message)
