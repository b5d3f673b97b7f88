"""What workers measured after loading, against what was planned for them."""

from __future__ import annotations

from math import ceil

from decodepool_operator.planner.capacity import Capacity
from decodepool_operator.planner.census import Member
from decodepool_operator.planner.state import Object, WorkerReport

TOLERATED_PERCENT = 3
NOISE = 0.01
"""Resident memory moves a little all the time: less than this much is no news."""

_NAMES = {
    "weight_bytes": "weightBytes",
    "workspace_bytes": "workspaceBytes",
    "reserve_bytes": "reserveBytes",
    "cache_bytes": "cacheBytes",
    "sessions_and_cache_bytes": "sessionsAndCacheBytes",
    "resident_bytes": "residentBytes",
}


def measured_status(workers: list[Member], capacity: Capacity, before: Object | None) -> Object | None:
    """Return the status's `measured`: of the worker that differs most from the plan. None where nobody has reported."""
    found = [(_percent(each.report, capacity), each.name, each.report) for each in workers if each.report is not None]
    found = [each for each in found if each[2].measured_bytes]
    if not found:
        return before if workers else None
    percent, pod, report = max(found, key=lambda each: (each[0], each[1]))
    amounts = {_NAMES[name]: amount for name, amount in report.measured_bytes.items() if name in _NAMES}
    fresh = {"workers": len(found), "pod": pod, **amounts, "differencePercent": percent}
    return before if before is not None and _alike(fresh, before) else fresh


def differs(measured: Object | None) -> bool:
    """Say whether what was measured is further from the plan than is tolerated."""
    return measured is not None and int(measured.get("differencePercent", 0)) > TOLERATED_PERCENT


def _percent(report: WorkerReport, capacity: Capacity) -> int:
    """Return the largest difference of a worker's parts from the plan, in whole percent of what was planned, rounded
    up.
    """
    plan, got = capacity.plan, report.measured_bytes
    pairs = [
        (got.get("weight_bytes"), plan.weight_bytes),
        (got.get("sessions_and_cache_bytes"), plan.reserve_bytes + plan.cache_bytes),
        (got.get("resident_bytes"), plan.device.memory_bytes),
    ]
    differences = [_difference(measured, planned, index) for index, (measured, planned) in enumerate(pairs)]
    return max(differences)


def _difference(measured: int | None, planned: int, index: int) -> int:
    """Less memory in the whole process than was planned for is no fault."""
    if measured is None or not planned or (index == 2 and measured < planned):
        return 0
    return ceil(100 * abs(measured - planned) / planned)


def _alike(fresh: Object, before: Object) -> bool:
    if fresh.keys() != before.keys() or fresh["differencePercent"] != before["differencePercent"]:
        return False
    return all(
        value == before[key] if isinstance(value, str) or key == "workers" else _near(value, before[key])
        for key, value in fresh.items()
    )


def _near(fresh: int, before: object) -> bool:
    return isinstance(before, int) and abs(fresh - before) <= NOISE * max(abs(before), 1)
