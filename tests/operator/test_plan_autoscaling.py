"""How many workers use asks for, and how slowly fewer are taken."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from decodepool_operator.planner.plan import plan
from decodepool_operator.planner.state import Object
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operator.pods import is_ready
from tests.operator.pools import cluster, pool
from tests.operator.simulation import Cluster, Fate

SCALING = {"minReplicas": 1, "maxReplicas": 5, "targetUtilizationPercent": 50, "scaleDownDelaySeconds": 60}


def scaled(replicas: int = 1, **scaling: Any) -> Cluster:
    here = cluster(pool(replicas=replicas, autoscaling={**SCALING, **scaling}))
    here.run(20)
    return here


def load(here: Cluster, *sessions: int) -> None:
    """Give the ready workers sessions, in the order of their names; the others get none."""
    workers = sorted(pod["metadata"]["name"] for pod in here.workers() if is_ready(pod))
    here.load = dict(zip(workers, [*sessions, *[0] * len(workers)], strict=False))


def replicas(here: Cluster) -> int:
    found: int = here.pool["spec"]["replicas"]
    return found


@pytest.mark.parametrize(
    ("sessions", "queued", "expected"), [(0, 0, 1), (4, 0, 1), (5, 0, 2), (8, 0, 2), (8, 1, 3), (8, 99, 5)]
)
def test_workers_are_as_many_as_keep_to_the_target(sessions: int, queued: int, expected: int) -> None:
    """8 sessions a worker at 50 %: one worker for every 4 sessions, resident or waiting."""
    here = scaled()
    load(here, sessions)
    here.queued = queued
    here.run(1)
    assert replicas(here) == expected


def test_fewer_are_taken_only_after_the_delay_and_to_the_most_that_was_needed_meanwhile() -> None:
    here = scaled(replicas=4)
    load(here, 4, 4, 4, 1)
    here.run(70)
    assert replicas(here) == 4
    load(here, 1)
    here.run(30)
    assert (replicas(here), here.status["autoscaling"]["wantedReplicas"]) == (4, 1)
    load(here, 3, 3)
    here.run(10)
    assert here.status["autoscaling"]["wantedReplicas"] == 2
    load(here, 1)
    here.run(30)
    assert replicas(here) == 2, "the delay has passed since less was enough; 2 were needed within it"


def test_use_that_comes_back_starts_the_delay_anew() -> None:
    here = scaled(replicas=2)
    here.run(30)
    assert "belowSince" in here.status["autoscaling"]
    load(here, 4, 4)
    here.run(5)
    assert "belowSince" not in here.status["autoscaling"]
    load(here, 1)
    here.run(50)
    assert replicas(here) == 2
    here.run(15)
    assert replicas(here) == 1


def test_a_worker_that_does_not_answer_is_unknown_and_not_empty() -> None:
    here = scaled(replicas=3)
    here.silent = {sorted(pod["metadata"]["name"] for pod in here.ready_workers())[0]}
    here.run(300)
    assert replicas(here) == 3
    load(here, 8, 8, 8)
    here.run(1)
    assert replicas(here) == 5, "what is known is enough to grow"


def test_a_worker_that_is_not_ready_any_more_is_unknown_and_not_empty() -> None:
    """Its sessions may be alive, and Kubernetes takes the worker that is not ready first."""
    here = scaled(replicas=2)
    ill = here.workers()[0]
    here.fate = lambda pod: Fate(unready_from=30 if pod is ill else None)
    here.run(300)
    assert (replicas(here), len(here.ready_workers())) == (2, 1)
    load(here, 5)
    here.run(1)
    assert replicas(here) == 3, "what is known is enough to grow"


def test_a_worker_whose_container_never_was_ready_holds_nothing_and_may_go() -> None:
    here = scaled(replicas=2)
    ill = here.workers()[0]
    here.fate = lambda pod: Fate(crashes="no disk") if pod is ill else Fate()
    here.run(300)
    assert (replicas(here), len(here.ready_workers())) == (1, 1)


def test_a_queue_that_nobody_tells_of_keeps_the_pool_from_shrinking() -> None:
    here = scaled(replicas=2)
    here.queued = None
    here.run(300)
    assert replicas(here) == 2


def test_workers_that_still_load_hold_nothing_and_are_not_asked() -> None:
    here = cluster(pool(replicas=1, autoscaling=SCALING))
    here.run(20)
    here.fate = lambda pod: Fate(ready_after=60)
    here.queued = 7
    here.run(20)
    assert replicas(here) == 2, "the same queue is not counted again at every look"


@pytest.mark.parametrize(("given_replicas", "expected"), [(9, 5), (1, 2)])
def test_replicas_are_brought_within_the_bounds(given_replicas: int, expected: int) -> None:
    assert replicas(scaled(replicas=given_replicas, minReplicas=2)) == expected


def test_a_pool_scaled_to_zero_by_hand_stays_there() -> None:
    here = scaled(replicas=0)
    here.queued = 50
    here.run(100)
    assert replicas(here) == 0
    assert "off until" in here.status["autoscaling"]["message"]


def test_without_the_section_replicas_are_never_written() -> None:
    here = cluster(pool(replicas=1))
    here.queued = 100
    here.run(30)
    assert (replicas(here), "autoscaling" in here.status) == (1, False)


def held_by(manager: str, subresource: str = "scale") -> Object:
    fields: Object = {"f:spec": {"f:replicas": {}}}
    return {"manager": manager, "operation": "Update", "subresource": subresource, "fieldsV1": fields}


@pytest.mark.parametrize("manager", ["kube-controller-manager", "keda-operator"])
def test_it_does_not_write_beside_another_autoscaler(manager: str) -> None:
    here = scaled()
    here.pool["metadata"]["managedFields"] = [held_by(manager)]
    here.queued = 50
    here.run(10)
    assert replicas(here) == 1
    assert here.condition("Degraded")["reason"] == "TwoAutoscalers"
    assert manager in here.condition("Degraded")["message"]


@pytest.mark.parametrize(
    "entry", [held_by("kubectl"), held_by("kube-controller-manager", ""), held_by("decodepool-operator")]
)
def test_a_person_who_scales_is_no_autoscaler(entry: Object) -> None:
    here = scaled()
    here.pool["metadata"]["managedFields"] = [entry]
    here.queued = 50
    here.run(10)
    assert replicas(here) == 5


def test_nothing_is_written_while_use_stays_the_same() -> None:
    here = scaled(replicas=2)
    load(here, 3, 3)
    here.run(10)
    writes = here.writes
    here.run(600)
    assert here.writes == writes


@settings(max_examples=100, deadline=None)
@given(sessions=st.lists(st.integers(0, 8), min_size=5, max_size=5), queued=st.none() | st.integers(0, 100))
def test_the_wish_is_always_within_the_bounds(sessions: list[int], queued: int | None) -> None:
    here = running()
    load(here, *sessions)
    here.queued = queued
    found = plan(here.pool, here.observed(), here.now).replicas
    assert found is None or 1 <= found <= 5


@cache
def running() -> Cluster:
    return scaled(replicas=3)
