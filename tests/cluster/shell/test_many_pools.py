"""Many pools at once: all are planned, none is written while nothing changes, one that changes is followed at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest
from decodepool_operator.api.kinds import POOLS

from tests.cluster.shell.conftest import Operators
from tests.cluster.shell.plane import Plane, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.soak]

POOL_COUNT = 100
IDLE_SECONDS = 10
FOLLOWED_SECONDS = 2.0
PLANNED_SECONDS = 300
"""Some 20 on a machine of two quiet cores."""
MOST_RESIDENT_MIB = 256
"""Half of what the chart allows an operator."""
WRITES = "decodepool_operator_writes_total"


def versions(plane: Plane, space: str) -> dict[str, str]:
    items = plane.api.call("GET", POOLS.path(space))["items"]
    return {pool["metadata"]["name"]: pool["metadata"]["resourceVersion"] for pool in items}


def planned(plane: Plane, space: str) -> int:
    items = plane.api.call("GET", POOLS.path(space))["items"]
    return sum("plan" in (pool.get("status") or {}) for pool in items)


def test_a_hundred_pools_cost_nothing_while_they_are_idle_and_one_is_followed_at_once(
    plane: Plane, space: str, model: str, operators: Operators
) -> None:
    operator = operators(LOG_LEVEL="WARNING")
    operator.start()
    with ThreadPoolExecutor(4) as threads:
        made = [
            threads.submit(plane.make, space, f"pool-{number}", model, sessionsPerWorker=4, suspend=True)
            for number in range(POOL_COUNT)
        ]
        for each in made:
            each.result()
    until(lambda: planned(plane, space) == POOL_COUNT, "every pool to be planned", PLANNED_SECONDS)
    until(lambda: is_quiet(plane, space), "the last write", 60)
    writes, before = operator.metric(WRITES), versions(plane, space)
    time.sleep(IDLE_SECONDS)
    assert operator.metric(WRITES) == writes
    assert versions(plane, space) == before
    followed = [seconds_to_follow(plane, space, f"pool-{number}") for number in range(0, POOL_COUNT, 20)]
    assert median(followed) < FOLLOWED_SECONDS, followed
    assert operator.peak_mib() < MOST_RESIDENT_MIB
    assert operator.metric("decodepool_operator_errors_total") == 0


def seconds_to_follow(plane: Plane, space: str, name: str) -> float:
    begin = time.monotonic()
    plane.set_spec(space, name, sessionsPerWorker=6)
    until(lambda: plane.pool(space, name)["status"]["plan"]["sessionsPerWorker"] == 6, "the change to be followed")
    return time.monotonic() - begin


def is_quiet(plane: Plane, space: str) -> bool:
    before = versions(plane, space)
    time.sleep(2)
    return versions(plane, space) == before
