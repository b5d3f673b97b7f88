"""The log tells why: a line a decision, the same for as long as the decision lasts, and nothing secret in it."""

from __future__ import annotations

from typing import Any

import pytest
from decodepool_operator.planner.decisions import MOST_PARTS, changed_parts
from decodepool_operator.planner.nodes import REQUIRED
from decodepool_operator.planner.state import Object

from tests.operator.lives import TOO_LITTLE, names, ready, rolls
from tests.operator.pools import cluster, gpu_pool, node, pool, those_that
from tests.operator.simulation import Cluster, Fate

SCALING = {"minReplicas": 1, "maxReplicas": 5, "targetUtilizationPercent": 50, "scaleDownDelaySeconds": 60}


def settled(**spec: Any) -> Cluster:
    here = cluster(pool(**spec))
    here.settle()
    here.decisions.clear()
    return here


def told(here: Cluster, what: str | None = None) -> list[str]:
    return [each.why for each in here.decisions if what in (None, each.what)]


def test_a_pool_that_begins_says_how_much_it_makes() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    assert [(each.what, each.why, each.after) for each in here.decisions] == [
        ("create", "workers of 8 sessions", 2),
        ("create", "gateways", 2),
    ]


def test_what_is_settled_decides_nothing() -> None:
    here = settled(replicas=2)
    here.run(600)
    assert here.decisions == []


def test_a_rollout_says_what_differs_and_whose_doing_it_is() -> None:
    here = settled()
    here.edit(rolls)
    here.settle()
    assert told(here, "rollout") == ["workers: generation 2: spec.containers[decodepool].args --context"]


def test_a_rollout_never_says_a_value() -> None:
    here = settled(template={"env": [{"name": "TOKEN", "value": "sesame"}]})
    here.edit(
        lambda spec: spec.update(template={"env": [{"name": "TOKEN", "value": "hush"}, {"name": "B", "value": "x"}]})
    )
    here.settle()
    assert told(here, "rollout") == [
        "workers: generation 2: spec.containers[decodepool].env[B], spec.containers[decodepool].env[TOKEN].value"
    ]


ZONES: list[Object] = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [each]}]} for each in "ab"]
NAMELESS: dict[str, tuple[Object, Object, str]] = {
    "tolerations": ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, "spec.tolerations"),
    "spread": (
        {"topologySpreadConstraints": [{"maxSkew": 1}]},
        {"topologySpreadConstraints": [{"maxSkew": 2}]},
        "spec.topologySpreadConstraints",
    ),
    "nodes": (
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": ZONES[:1]}}}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": ZONES}}}},
        f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms",
    ),
}
"""Templates before and after, that differ in a list whose items have no names, and what is told of that."""


@pytest.mark.parametrize("case", NAMELESS)
def test_a_rollout_for_a_list_without_names_is_told_and_done(case: str) -> None:
    before, after, told_of = NAMELESS[case]
    here = settled(template=before)
    here.edit(lambda spec: spec.update(template=after))
    here.settle()
    assert [each for each in told(here, "rollout") if "workers" in each] == [f"workers: generation 2: {told_of}"]
    assert ready(here) == ("True", "AllWorkersReady")


def test_a_toleration_is_given_to_a_gpu_pool_that_runs() -> None:
    here = cluster(gpu_pool(), nodes=[node("a")])
    here.settle()
    here.edit(lambda spec: spec.update(template={"tolerations": [{"key": "team", "operator": "Exists"}]}))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    assert {"key": "team", "operator": "Exists"} in here.ready_workers()[0]["spec"]["tolerations"]


def test_a_policy_that_somebody_opened_is_closed_again() -> None:
    here = settled()
    here.objects["NetworkPolicy", "chat-worker"]["spec"]["ingress"] = [{"from": [{"podSelector": {}}]}]
    here.settle()
    assert told(here, "repair") == ["NetworkPolicy chat-worker was changed by somebody: spec.ingress"]
    assert here.objects["NetworkPolicy", "chat-worker"]["spec"]["ingress"][0]["ports"]


def test_what_somebody_else_changed_is_told_by_name() -> None:
    here = settled()
    here.objects["PodDisruptionBudget", "chat-worker"]["spec"]["maxUnavailable"] = 3
    here.objects["Deployment", "chat-worker"]["spec"]["replicas"] = 4
    here.settle()
    assert told(here, "repair") == [
        "PodDisruptionBudget chat-worker was changed by somebody: spec.maxUnavailable",
        "Deployment chat-worker was changed by somebody: spec.replicas",
    ]


def test_workers_that_somebody_scales_are_told_with_before_and_after() -> None:
    here = settled(replicas=2)
    here.edit(lambda spec: spec.update(replicas=1))
    here.settle()
    assert [(each.what, each.before, each.after) for each in here.decisions] == [("hold", None, None), ("scale", 2, 1)]
    assert told(here) == [
        "workers are marked by their sessions first, so that the emptiest goes",
        "workers: 1 wanted",
    ]
    here.decisions.clear()
    here.edit(lambda spec: spec.update(suspend=True))
    here.settle()
    assert told(here, "scale") == ["workers: suspend is true"]


@pytest.mark.parametrize("component", ["worker", "gateway"])
def test_failures_say_which_pod_failed_and_until_when_nothing_is_made(component: str) -> None:
    here = settled()
    here.fate = those_that(component, Fate(fails="Evicted"))
    victim = next(name for name in here.pods if name.startswith(f"chat-{component}"))
    here.run(120)
    assert told(here, "replace")[0] == f"{victim}: Evicted: Evicted on this node"
    holds = [why for why in told(here, "hold") if f"failures of {component}s in a row" in why]
    assert 2 <= len(holds) <= 5, "one a failure, however often the pool is looked at"
    assert "none is made before 2026-01-01T00:" in holds[0]
    assert f"{component}s: failures are given time" in told(here, "scale")


def test_a_spec_that_cannot_be_is_told_beside_what_runs() -> None:
    here = settled()
    here.edit(lambda spec: spec.update(accelerator=TOO_LITTLE))
    here.settle()
    (why,) = told(here)
    assert why.startswith("CannotFit: what runs keeps its template: ")


def scaled(**parts: Any) -> Cluster:
    here = cluster(pool(autoscaling=SCALING, **parts))
    here.run(20)
    here.decisions.clear()
    here.events.clear()
    return here


def test_autoscaling_says_what_it_computed_and_is_an_event() -> None:
    computed = "5 sessions in use and 2 waiting: 2 workers wanted, at 50 % of 8 sessions each"
    here = scaled()
    here.load = dict.fromkeys(names(here.ready_workers()), 5)
    here.queued = 2
    here.run(5)
    assert [(each.why, each.before, each.after) for each in here.decisions if each.what == "autoscale"] == [
        (f"{computed}; scaling up from 1", 1, 2)
    ]
    assert events(here) == [("ScaleUp", "from 1 to 2 workers: use is over 50 % of the sessions of 1 worker")]
    assert here.status["autoscaling"] == {
        "wantedReplicas": 2,
        "message": f"{computed}; as many as there are",
    }


def events(here: Cluster) -> list[tuple[str, str]]:
    return [(each.reason, each.message) for each in here.events if each.reason in ("ScaleUp", "ScaleDown")]


def test_autoscaling_says_what_it_waits_for_and_then_what_it_did() -> None:
    here = scaled(replicas=2)
    here.run(1)
    message = here.status["autoscaling"]["message"]
    assert message.startswith("0 sessions in use and 0 waiting: 1 worker (minReplicas, not 0) wanted, at 50 % of ")
    assert message.endswith("; scaling down to 1 at 2026-01-01T00:01:00Z unless more are needed before")
    for active in (1, 2, 3):
        here.load = {min(names(here.ready_workers())): active}
        here.run(5)
    assert here.decisions == [], "what it waits for is told once, however the sessions move"
    here.run(60)
    (why,) = told(here, "autoscale")
    assert why.startswith("3 sessions in use and 0 waiting: 1 worker wanted, ")
    assert why.endswith("; scaling down, no more were needed for 60 s")
    assert events(here) == [("ScaleDown", "from 2 to 1 worker: no more were needed for 60 s")]


HELD = {
    "a silent worker": ("silent", "0 sessions in use and 0 waiting, 2 that did not tell taken for full: 2 workers"),
    "a silent gateway": ("queued", "0 sessions in use and an unknown number waiting: 1 worker"),
}


@pytest.mark.parametrize(("what", "begins"), HELD.values(), ids=HELD)
def test_autoscaling_says_what_it_does_not_know(what: str, begins: str) -> None:
    here = scaled(replicas=2)
    if what == "silent":
        here.silent = names(here.ready_workers())
    else:
        here.queued = None
    here.run(10)
    assert here.status["autoscaling"]["message"].startswith(begins)
    if what == "queued":
        assert told(here) == ["autoscaling: nothing shrinks before every worker and gateway has answered"]


IDLE = {
    "suspended": ({"suspend": True}, "suspended: nothing is scaled"),
    "not planned": ({"accelerator": TOO_LITTLE}, "there is no plan of what a worker holds yet: nothing is scaled"),
    "at its bounds": ({"replicas": 5}, None),
}


@pytest.mark.parametrize(("spec", "message"), IDLE.values(), ids=IDLE)
def test_autoscaling_is_never_without_a_word(spec: Object, message: str | None) -> None:
    here = scaled(**spec)
    found = here.status["autoscaling"]["message"]
    assert found == message if message else found


def test_a_bound_that_keeps_from_what_use_asks_for_is_told() -> None:
    here = scaled(replicas=5)
    here.queued = 99
    here.run(3)
    assert "5 workers (maxReplicas, not 25) wanted" in here.status["autoscaling"]["message"]


def test_many_differences_are_cut_short() -> None:
    many = {f"k{number}": number for number in range(50)}
    assert len(changed_parts(many, {})) == MOST_PARTS + 1
