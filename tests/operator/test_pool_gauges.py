"""A pool's status as series: what it says, and nothing where it says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from decodepool_operator.shell.pool_gauges import pool_gauges

POOL = {
    "metadata": {"namespace": "team", "name": "llama"},
    "spec": {"replicas": 2, "suspend": False},
    "status": {
        "readyReplicas": 1,
        "sessions": {"capacity": 16, "active": 3},
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "RollingOut"},
            {"type": "Degraded", "status": "True", "reason": "MeasuredDiffers"},
        ],
    },
}


def read(pool: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """The series of one pool, by name and last label."""
    found: dict[tuple[str, ...], float] = {}
    for family in pool_gauges([pool]):
        for sample in family.samples:
            *whose, label = sample.labels.values()
            assert whose == [pool["metadata"]["namespace"], pool["metadata"]["name"]]
            found[sample.name.removeprefix("decodepool_operator_pool_"), label] = sample.value
    return found


def test_a_status_is_told_as_numbers() -> None:
    assert read(POOL) == {
        ("ready", "RollingOut"): 0,
        ("condition", "Ready"): 0,
        ("condition", "Degraded"): 1,
        ("sessions", "capacity"): 16,
        ("sessions", "active"): 3,
        ("workers", "ready"): 1,
        ("workers", "wanted"): 2,
    }


def test_a_suspended_pool_wants_no_workers() -> None:
    assert read({**POOL, "spec": {"replicas": 2, "suspend": True}})["workers", "wanted"] == 0


@pytest.mark.parametrize("status", [None, {}, {"conditions": None, "sessions": None}])
def test_a_pool_without_a_status_tells_what_is_wanted_and_no_more(status: dict[str, Any] | None) -> None:
    assert read({**POOL, "status": status}) == {("workers", "wanted"): 2}
