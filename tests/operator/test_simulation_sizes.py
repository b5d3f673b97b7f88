"""How many workers there are does not hang on their template: fewer can be had whatever becomes of it, never more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from decodepool_operator.planner.state import Object, Unresolved

from tests.operator.lives import TOO_LITTLE, names, ready, rolls
from tests.operator.pools import URL, cluster, pool, resolved, workers_that
from tests.operator.simulation import Cluster, Fate, well

DUPLICATE = 'failed to create typed patch object: .spec.template.spec.volumes: duplicate entries for key [name="v"]'
ELSEWHERE = {"model": {"source": {"http": {"url": f"{URL}.gone"}}}}


def refused(here: Cluster) -> None:
    here.refused_template = DUPLICATE
    here.edit(rolls)


def cannot_fit(here: Cluster) -> None:
    here.edit(lambda spec: spec.update(accelerator=TOO_LITTLE))


def unresolvable(here: Cluster) -> None:
    here.edit(lambda spec: spec.update(ELSEWHERE))
    here.resolution = Unresolved("NotFound", "the server answers 404 Not Found", resolved(here.pool).source)


def repaired(here: Cluster) -> None:
    here.refused_template = None
    here.edit(lambda spec: spec.update(pool(replicas=spec["replicas"], contextTokens=96)["spec"]))
    here.resolution = resolved(here.pool)


OBSTACLES: dict[str, Callable[[Cluster], None]] = {
    "the API server refuses the template": refused,
    "the model does not fit": cannot_fit,
    "the model cannot be read": unresolvable,
}


def in_the_way(obstacle: str, replicas: int) -> Cluster:
    here = cluster(pool(replicas=replicas))
    here.settle()
    OBSTACLES[obstacle](here)
    here.settle()
    assert len(here.ready_workers()) == replicas, "what runs goes on"
    here.decisions.clear()
    return here


def size(here: Cluster) -> int:
    replicas: int = here.objects["Deployment", "chat-worker"]["spec"]["replicas"]
    return replicas


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_pool_is_scaled_down_to_its_fullest_worker_whatever_is_in_the_way_of_its_template(obstacle: str) -> None:
    here = in_the_way(obstacle, replicas=3)
    fullest = sorted(names(here.ready_workers()))[1]
    here.load = {fullest: 5}
    here.edit(lambda spec: spec.update(replicas=1))
    here.settle()
    assert names(here.ready_workers()) == {fullest}
    assert size(here) == 1
    assert [(each.why, each.before, each.after) for each in here.decisions if each.what == "scale"] == [
        ("workers: 1 wanted", 3, 1)
    ]
    before = (here.writes, len(here.history), len(here.events))
    here.run(300)
    assert (here.writes, len(here.history), len(here.events)) == before, "an idle pool writes nothing"


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_pool_is_not_scaled_up_with_a_template_that_cannot_be(obstacle: str) -> None:
    here = in_the_way(obstacle, replicas=1)
    before = here.made_pods
    here.edit(lambda spec: spec.update(replicas=3))
    here.run(60)
    assert (size(here), here.made_pods) == (1, before)


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("to", [0, 1])
def test_a_repaired_spec_rolls_out_as_ever(obstacle: str, to: int) -> None:
    here = in_the_way(obstacle, replicas=2)
    here.edit(lambda spec: spec.update(replicas=to))
    here.settle()
    assert size(here) == to
    here.edit(lambda spec: spec.update(replicas=2))
    here.run(30)
    assert size(here) == to
    here.decisions.clear()
    repaired(here)
    here.settle()
    assert (ready(here), len(here.ready_workers())) == (("True", "AllWorkersReady"), 2)
    assert all("--context=96" in _arguments(pod) for pod in here.ready_workers())
    assert not [each.why for each in here.decisions if each.what == "repair"], "nobody else changed the size"


def _arguments(pod: Object) -> str:
    return " ".join(pod["spec"]["containers"][0]["args"]).replace("--context ", "--context=")


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_suspended_pool_has_no_workers_whatever_is_in_the_way_of_its_template(obstacle: str) -> None:
    here = in_the_way(obstacle, replicas=2)
    told = []

    def look(moment: Cluster) -> None:
        message = moment.condition("Ready")["message"]
        there = len(moment.workers())
        assert not (there and "no workers run" in message and moment.last and moment.last.is_quiet)
        told.append(message)

    here.edit(lambda spec: spec.update(suspend=True))
    here.settle(check=look)
    assert (here.workers(), ready(here)) == ([], ("False", "Suspended"))
    assert here.condition("Ready")["message"] == "suspended: no workers run"
    assert "suspended: 2 workers not gone yet" in told
    before = here.writes
    here.run(300)
    assert here.writes == before


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_failures_take_no_worker_that_could_not_be_given_back(obstacle: str) -> None:
    here = in_the_way(obstacle, replicas=2)
    victim = names(here.ready_workers()).pop()
    others = names(here.workers())
    here.fate = workers_that(Fate(fails="UnexpectedAdmissionError"), lambda pod: pod["metadata"]["name"] not in others)
    here.pods[victim]["status"].update(phase="Failed", reason="Evicted", message="low on disk", conditions=[])
    here.run(60)
    assert here.condition("Degraded")["status"] == "True"
    assert size(here) == 2
    here.fate = well
    here.run(60)
    assert len(here.ready_workers()) == 2


def test_a_template_that_is_fine_is_written_once_with_the_size() -> None:
    here = cluster(pool(replicas=3))
    here.settle()

    def smaller_and_other(spec: Object) -> None:
        rolls(spec)
        spec.update(replicas=1)

    here.edit(smaller_and_other)
    here.settle()
    assert (ready(here), len(here.ready_workers())) == (("True", "AllWorkersReady"), 1)
    assert "--context=64" in _arguments(here.ready_workers()[0])


def test_an_object_of_the_deployments_name_that_is_anothers_is_not_shrunk() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    cannot_fit(here)
    here.settle()
    here.objects["Deployment", "chat-worker"]["metadata"]["ownerReferences"] = []
    here.edit(lambda spec: spec.update(replicas=1))
    here.run(30)
    assert size(here) == 2
