"""What is told of a pool: true, of the present generation, in one line, and the same until something changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from decodepool_cli.faults import Fault
from decodepool_cli.fetching import _check_digest
from decodepool_operator.names import POOL_LABEL, SIDECAR_LABEL
from decodepool_operator.planner.conditions import TYPES, Finding, events_of, with_times
from decodepool_operator.planner.nodes import MAJOR_LABEL, PRODUCT_LABEL
from decodepool_operator.planner.plan import plan
from decodepool_operator.planner.resolution import source_text
from decodepool_operator.planner.state import Object, Plan, Resolving, Unresolved, WorkerReport
from decodepool_operator.texts import MAX_CHARACTERS, steady
from decodepool_sizing.facts import ModelFacts

from tests.operator.pools import cluster, facts, gpu_pool, node, observed, pool, resolved, workers_that
from tests.operator.simulation import START, Fate


def told(found: Plan, kind: str = "Ready") -> Object:
    return next(each for each in found.status["conditions"] if each["type"] == kind)


def look(raw: Object, **parts: Any) -> Plan:
    return plan(raw, observed(raw, **parts), START)


def test_every_condition_is_always_told_and_speaks_of_its_generation() -> None:
    raw = pool()
    raw["metadata"]["generation"] = 7
    found = look(raw).status
    assert tuple(each["type"] for each in found["conditions"]) == TYPES
    assert {each["observedGeneration"] for each in found["conditions"]} == {found["observedGeneration"]} == {7}
    assert all(each["reason"].isalnum() and "\n" not in each["message"] for each in found["conditions"])


def test_a_transition_time_moves_with_the_status_and_with_nothing_else() -> None:
    first = with_times([Finding("Ready", "False", "Starting", "a")], {}, 1, START)
    later = START + timedelta(minutes=5)
    second = with_times([Finding("Ready", "False", "OOMKilled", "b")], {"conditions": first}, 2, later)
    assert second[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert (second[0]["reason"], second[0]["observedGeneration"]) == ("OOMKilled", 2)
    third = with_times([Finding("Ready", "True", "AllWorkersReady", "c")], {"conditions": second}, 2, later)
    assert third[0]["lastTransitionTime"] == "2026-01-01T00:05:00Z"


@pytest.mark.parametrize(
    ("before", "after", "type_"),
    [
        (("False", "Starting"), ("True", "AllWorkersReady"), "Normal"),
        (("False", "Starting"), ("False", "OOMKilled"), "Warning"),
        (("True", "AllWorkersReady"), ("False", "RollingOut"), "Normal"),
        (("False", "OOMKilled"), ("False", "OOMKilled"), None),
    ],
)
def test_an_event_tells_what_became_of_ready(before: Any, after: Any, type_: str | None) -> None:
    known = with_times([Finding("Ready", before[0], before[1], "x")], {}, 1, START)
    found = events_of([Finding("Ready", after[0], after[1], "y")], {"conditions": known})
    assert [event.type for event in found] == ([type_] if type_ else [])


def with_refusal(line: str) -> ModelFacts:
    return replace(facts(), refusals={"cpu": (line,), "cuda": ()})


MODEL = {
    "found nothing": (Unresolved("NotFound", "the server answers 404 Not Found", ""), "False", "NotFound"),
    "no token": (Unresolved("Unauthorized", "the server answers 401", ""), "False", "Unauthorized"),
    "being read": (Resolving("the header is read"), "Unknown", "Resolving"),
    "not asked yet": (None, "Unknown", "Resolving"),
    "of another source": (Unresolved("NotFound", "old", "another"), "Unknown", "Resolving"),
}


@pytest.mark.parametrize("name", sorted(MODEL))
def test_an_unknown_model_keeps_everything_waiting_under_one_reason(name: str) -> None:
    resolution, status, reason = MODEL[name]
    raw = pool()
    if isinstance(resolution, Unresolved) and not resolution.source:
        resolution = Unresolved(resolution.reason, resolution.message, resolved(raw).source)
    found = look(raw, resolution=resolution)
    assert (told(found, "ModelResolved")["status"], told(found, "ModelResolved")["reason"]) == (status, reason)
    assert (told(found)["status"], told(found)["reason"]) == ("False", reason)
    assert told(found, "CapacityPlanned")["reason"] == "ModelNotResolved"
    assert not [each for each in found.apply if each["kind"] in ("Deployment", "Job")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("architecture mamba: the engine does not run this yet", "UnsupportedArchitecture"),
        ("tensor blk.0.ffn_up.weight: type IQ1_S: the engine does not run this yet", "UnsupportedTensor"),
        ("rope turns 8 of 16 dimensions: the engine does not run this yet", "UnsupportedModel"),
    ],
)
def test_a_model_that_the_engine_refuses_is_refused_before_there_are_pods(line: str, reason: str) -> None:
    raw = pool()
    found = look(raw, resolution=resolved(raw, with_refusal(line)))
    assert (told(found)["reason"], told(found)["message"]) == (reason, line)
    assert not [each for each in found.apply if each["kind"] == "Deployment"]
    on_gpu = gpu_pool()
    assert told(look(on_gpu, resolution=resolved(on_gpu, with_refusal(line))), "ModelResolved")["status"] == "True"


def test_a_file_with_another_digest_is_told_of_the_model_and_not_of_a_pod(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"other")
    with pytest.raises(Fault) as said:
        _check_digest(tmp_path / "part", "http://x", "bb")
    here = cluster(pool(), fate=workers_that(Fate(crashes=f"decodepool: {said.value}")))
    here.run(30)
    assert here.condition("ModelResolved")["reason"] == here.condition("Ready")["reason"] == "HashDiffers"


def test_secrets_in_a_url_are_not_told() -> None:
    raw = pool(model={"source": {"http": {"url": "https://user:pass@hub.example:8443/a/b.gguf?token=secret"}}})
    assert source_text(raw) == "https://hub.example:8443/a/b.gguf"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("tiny.gguf", "tiny"),
        ("my%20model.Q4_K.gguf", "my model.Q4_K"),
        ("a%0AReady%20True%1b%5b31m.gguf", "a Ready True\\x1b[31m"),
        ("a%2f.gguf", "model"),
        ("%0a.gguf", "model"),
        ("", "model"),
        ("x" * 500, "x" * 128),
    ],
)
def test_a_model_has_a_name_of_one_line(file: str, name: str) -> None:
    raw = pool(model={"source": {"http": {"url": f"http://models.example/{file}"}}})
    found = look(raw)
    assert found.status["model"]["name"] == name
    assert told(found, "ModelResolved")["message"].startswith(f"{name}: llama, 2 layers")


def test_a_spec_that_this_operator_does_not_know_touches_nothing() -> None:
    raw = pool()
    raw["spec"]["futureField"] = 1
    found = look(raw)
    assert (told(found)["status"], told(found)["reason"]) == ("False", "InvalidSpec")
    assert "futureField" in told(found)["message"]
    assert (found.apply, found.delete) == ((), ())
    assert not plan({**raw, "status": found.status}, observed(raw), START + timedelta(hours=1)).writes_status


SIDECARS = {
    "none": ([], ("False", "NoReplicas")),
    "none ready": (["False"], ("False", "NoReplicas")),
    "some ready": (["False", "True"], ("True", "SidecarsOnly")),
}


@pytest.mark.parametrize("name", SIDECARS)
@pytest.mark.parametrize("suspend", [False, True])
def test_a_pool_of_sidecars_alone_is_ready_where_they_are(name: str, suspend: bool) -> None:
    states, expected = SIDECARS[name]
    pods = tuple(
        {
            "metadata": {"name": f"app-{index}", "labels": {SIDECAR_LABEL: "chat", POOL_LABEL: ""}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": state}]},
        }
        for index, state in enumerate(states)
    )
    raw = pool(replicas=0, suspend=suspend)
    first = look(raw, pods=pods)
    found = told(look({**raw, "status": first.status}, pods=pods))
    assert (found["status"], found["reason"]) == (("False", "Suspended") if suspend else expected)


def report(measured: dict[str, int], pod: Object) -> WorkerReport:
    return WorkerReport(pod["metadata"]["name"], pod["metadata"]["uid"], 8, 0, measured)


@pytest.mark.parametrize(
    ("part", "share", "differs"),
    [
        ("weight_bytes", 1.0, False),
        ("weight_bytes", 1.02, False),
        ("weight_bytes", 1.04, True),
        ("weight_bytes", 0.9, True),
        ("resident_bytes", 0.5, False),
        ("resident_bytes", 1.2, True),
    ],
)
def test_what_was_measured_is_told_beside_the_plan(part: str, share: float, differs: bool) -> None:
    here = cluster(pool())
    here.settle()
    planned = here.status["plan"]
    amounts = {"weight_bytes": planned["weightBytes"], "resident_bytes": planned["deviceBytes"]}
    (pod,) = here.ready_workers()
    reports = {pod["metadata"]["name"]: report({**amounts, part: int(amounts[part] * share)}, pod)}
    seen = here.observed()
    found = plan(here.pool, replace(seen, reports=reports), here.now)
    degraded = told(found, "Degraded")
    assert (degraded["reason"] == "MeasuredDiffers") is differs
    assert found.status["measured"]["workers"] == 1
    assert told(found)["status"] == "True", "a pool that serves is ready, whatever it measures"


def test_memory_that_breathes_is_no_news() -> None:
    here = cluster(pool())
    here.settle()
    (pod,) = here.ready_workers()

    def measure(resident: int) -> Plan:
        seen = here.observed()
        reports = {pod["metadata"]["name"]: report({"resident_bytes": resident}, pod)}
        return plan(here.pool, replace(seen, reports=reports), here.now)

    here.pool["status"] = measure(100_000).status
    assert not measure(100_500).writes_status
    assert measure(120_000).writes_status


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (("Deployment chat-worker: Invalid: spec.template: too long",), "ApplyFailed"),
        (("the installed CRD is older than this operator and drops status.plan",), "CRDOutdated"),
    ],
)
def test_what_the_api_refused_is_told(faults: tuple[str, ...], reason: str) -> None:
    degraded = told(look(pool(), faults=faults), "Degraded")
    assert (degraded["status"], degraded["reason"], degraded["message"]) == ("True", reason, faults[0])


def test_what_the_api_refused_is_in_the_way_of_what_waits_for_it_and_of_nothing_else() -> None:
    refused = ("Deployment chat-worker: Invalid: spec.template: too long",)
    assert told(look(pool(), faults=refused))["reason"] == "ApplyFailed", "no worker starts that cannot be made"
    outdated = ("the installed CRD is older than this operator and drops status.plan",)
    assert told(look(pool(), faults=outdated))["reason"] != "CRDOutdated"


STEADY = {
    'pods "chat-worker-5d8f-x2vbn" is forbidden': 'pods "worker" is forbidden',
    "back-off 5m0s restarting": "… restarting",
    "at 2026-01-01T00:00:00.123Z": "at …",
    "uid 0f7f4c9e-0000-4000-8000-0123456789ab": "uid …",
    f'failed to create containerd container "{"0f" * 32}": no': "failed to create containerd container …: no",
    f'failed to start containerd task "{"3b" * 32}": no': "failed to start containerd task …: no",
    "two\nlines": "two lines",
    "other-worker-5d8f-x2vbn": "other-worker-5d8f-x2vbn",
}


@pytest.mark.parametrize("text", sorted(STEADY))
def test_a_message_loses_what_changes_from_look_to_look(text: str) -> None:
    assert steady(text, "chat") == STEADY[text]


def test_a_long_message_is_cut() -> None:
    assert len(steady("x" * 5000, "chat")) == MAX_CHARACTERS


NO_IMAGES = "Job chat-reader: Invalid: spec.template.spec.volumes[0]: Required value: must specify a volume type"


@pytest.mark.parametrize(("kind", "hints"), [("image", True), ("pvc", False)])
def test_a_cluster_without_image_volumes_is_told_of_in_words(kind: str, hints: bool) -> None:
    source = {"image": {"reference": "a:1", "path": "/x"}, "pvc": {"claimName": "c", "path": "x"}}[kind]
    message = told(look(pool(model={"source": {kind: source}}), faults=(NO_IMAGES,)), "Degraded")["message"]
    assert message.endswith(NO_IMAGES)
    assert ("from 1.35" in message) is hints


@pytest.mark.parametrize(("number", "ending"), [(4, ""), (5, " and 1 more")])
def test_of_products_that_are_left_out_it_says_how_many_it_does_not_name(number: int, ending: str) -> None:
    old = [f"X{index}" for index in range(number)]
    nodes = [node(name, {PRODUCT_LABEL: name, MAJOR_LABEL: "7"}) for name in old]
    found = told(look(gpu_pool(), nodes=(node("new"), *nodes)), "CapacityPlanned")
    assert found["message"].endswith(
        f"; nodes with X0, X1, X2, X3{ending} are left out: older than compute capability 8.0"
    )
