from __future__ import annotations

from typing import Any

import pytest
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import CHILDREN, POOLS, Kind, kind_of
from decodepool_operator.planner.differences import needs_writing, same_stamp, stamped
from decodepool_operator.planner.state import Object, Plan, Reference
from decodepool_operator.shell.carry_out import FORCE_WINDOW_SECONDS, FORCES, Carrier, Forces, Outcome, PoolChangedError
from decodepool_operator.shell.metrics import Metrics

from tests.operator.fake_api import FakeApi
from tests.operator.pools import pool

DEPLOYMENT = CHILDREN[0]
CONFLICT = ApiFault(
    Refusal.FIELD_CONFLICT, "Apply failed with 1 conflict", fields=('.spec.replicas: conflict with "kubectl"',)
)
QUOTA = ApiFault(Refusal.QUOTA, "exceeded quota: gpus, requested: 1, used: 0, limited: 0")


def child(raw: Object, name: str = "chat-worker", kind: Kind = DEPLOYMENT, **spec: Any) -> Object:
    owner = {"uid": raw["metadata"]["uid"], "controller": True}
    metadata = {"name": name, "namespace": "team", "ownerReferences": [owner]}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": spec}


class Room:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.raw = self.api.put(pool())
        self.now = 0.0
        self.metrics = Metrics()
        self.forces = Forces(lambda: self.now)
        self.carrier = Carrier(self.api, self.metrics, self.forces)  # type: ignore[arg-type]

    def do(self, plan: Plan, *known: Object) -> Outcome:
        named = {(kind_of(body), body["metadata"]["name"]): body for body in known}
        return self.carrier.carry_out(self.raw, plan, named)

    def writes(self) -> list[tuple[str, str]]:
        return [call for call in self.api.calls if call[0] not in ("get", "list")]


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_plan_is_carried_out_in_the_order_of_its_fields(room: Room) -> None:
    room.api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"}})
    room.api.put(child(room.raw, "big"))
    outcome = room.do(
        Plan(
            annotate=(("p", {"cost": "1"}),),
            shrink=(Reference("apps/v1", "Deployment", "big"), 1),
            apply=(child(room.raw),),
            delete=(Reference("batch/v1", "Job", "old"),),
            replicas=2,
        )
    )
    assert room.writes() == [
        ("merge", "p"),
        ("merge", "big"),
        ("apply", "chat-worker"),
        ("delete", "old"),
        ("scale", "chat"),
    ]
    assert outcome.faults == []
    assert [body["metadata"]["name"] for body in outcome.written] == ["p", "big", "chat-worker"]


def test_a_pod_that_is_gone_is_no_fault(room: Room) -> None:
    assert room.do(Plan(annotate=(("gone", {"cost": "1"}),))).faults == []


def shrinking(found: Object) -> Plan:
    return Plan(shrink=(Reference("apps/v1", "Deployment", "chat-worker", found["metadata"]["uid"]), 1))


def test_a_deployment_is_shrunk_without_its_template_and_is_then_no_longer_what_was_applied(room: Room) -> None:
    template = {"spec": {"containers": [{"name": "decodepool"}]}}
    wanted = stamped(child(room.raw, replicas=3, template=template))
    assert room.do(shrinking(room.api.put(wanted))).faults == []
    live = room.api.of("Deployment")[0]
    assert live["spec"] == {"replicas": 1, "template": template}
    assert (needs_writing(wanted, live), same_stamp(wanted, live)) == (True, False)


ANOTHER = {
    "it is gone": ApiFault(Refusal.NOT_FOUND, 'deployments.apps "chat-worker" not found'),
    "it changes all the time": ApiFault(Refusal.STALE, "the object has been modified"),
    "it is another": ApiFault(
        Refusal.INVALID,
        'Deployment.apps "chat-worker" is invalid: metadata.uid: Invalid value: "u": field is immutable',
    ),
}


@pytest.mark.parametrize("fault", ANOTHER.values(), ids=ANOTHER)
def test_a_deployment_that_is_gone_or_another_by_now_is_not_shrunk(room: Room, fault: ApiFault) -> None:
    found = room.api.put(child(room.raw, replicas=3))
    room.api.refuse("merge", "chat-worker", fault)
    assert room.do(shrinking(found)).faults == []
    assert room.api.of("Deployment")[0]["spec"] == {"replicas": 3}


def test_who_makes_a_deployment_larger_again_and_again_is_told_of_and_not_fought(room: Room) -> None:
    found = room.api.put(child(room.raw, replicas=3))
    faults = [room.do(shrinking(found)).faults for _ in range(FORCES + 2)]
    assert len(room.writes()) == FORCES
    assert (
        faults[-2:]
        == [["Deployment chat-worker: FieldConflict: spec.replicas: somebody writes it again and again"]] * 2
    )


def test_a_size_that_this_operator_wrote_by_itself_is_nobodys_contest(room: Room) -> None:
    """The API server takes what one manager applied and what it patched for two managers' doing."""
    own = ApiFault(
        Refusal.FIELD_CONFLICT, "1 conflict", fields=('.spec.replicas: conflict with "decodepool-operator"',)
    )
    for _ in range(FORCES + 2):
        room.api.refuse("apply", "chat-worker", own)
        assert room.do(Plan(apply=(child(room.raw),))).faults == []
    room.api.refuse("apply", "chat-worker", CONFLICT)
    room.do(Plan(apply=(child(room.raw),)))
    assert room.forces.may_force(DEPLOYMENT, "team", "chat-worker", 1), "it counted as none of the contests"


def test_a_field_taken_by_somebody_is_taken_back(room: Room) -> None:
    room.api.refuse("apply", "chat-worker", CONFLICT)
    assert room.do(Plan(apply=(child(room.raw),))).faults == []
    assert room.writes() == [("apply", "chat-worker"), ("force", "chat-worker")]


def test_who_writes_a_field_again_and_again_is_told_of_and_not_fought(room: Room) -> None:
    for _ in range(20):
        room.api.refuse("apply", "chat-worker", CONFLICT)
        outcome = room.do(Plan(apply=(child(room.raw),)))
    assert room.writes().count(("force", "chat-worker")) == FORCES
    assert outcome.faults == ['Deployment chat-worker: FieldConflict: .spec.replicas: conflict with "kubectl"']


@pytest.mark.parametrize("change", ["an hour later", "the pool's owner changed it"])
def test_a_contest_is_not_for_ever(room: Room, change: str) -> None:
    for _ in range(FORCES + 1):
        room.api.refuse("apply", "chat-worker", CONFLICT)
        room.do(Plan(apply=(child(room.raw),)))
    if change == "an hour later":
        room.now += FORCE_WINDOW_SECONDS
    else:
        room.raw["metadata"]["generation"] += 1
    room.api.refuse("apply", "chat-worker", CONFLICT)
    assert room.do(Plan(apply=(child(room.raw),))).faults == []


def test_contests_of_long_ago_are_forgotten(room: Room) -> None:
    for number in range(3):
        room.now = number * FORCE_WINDOW_SECONDS
        assert room.forces.may_force(DEPLOYMENT, "team", f"pool-{number}", 1)
        assert len(room.forces._times) == len(room.forces._generations) == 1


def test_one_refusal_does_not_keep_the_rest_from_being_done(room: Room) -> None:
    room.api.refuse("apply", "chat-worker", QUOTA)
    outcome = room.do(Plan(apply=(child(room.raw), child(room.raw, "chat-gateway"))))
    assert outcome.faults == [f"Deployment chat-worker: QuotaExceeded: {QUOTA.message}"]
    assert [body["metadata"]["name"] for body in outcome.written] == ["chat-gateway"]


@pytest.mark.parametrize("refusal", [Refusal.TERMINATING, Refusal.UNAVAILABLE])
def test_nothing_more_is_asked_of_a_namespace_that_ends_or_a_server_that_is_away(room: Room, refusal: Refusal) -> None:
    room.api.refuse("apply", "chat-worker", ApiFault(refusal, "no"))
    outcome = room.do(Plan(apply=(child(room.raw), child(room.raw, "chat-gateway"))))
    assert ("apply", "chat-gateway") not in room.writes()
    assert (outcome.terminating, outcome.unavailable) == (
        refusal is Refusal.TERMINATING, refusal is Refusal.UNAVAILABLE,
    )  # fmt: skip


def test_the_end_of_a_namespace_is_no_error(room: Room) -> None:
    room.api.refuse("apply", "chat-worker", ApiFault(Refusal.TERMINATING, "no"))
    assert room.do(Plan(apply=(child(room.raw),))).faults == []
    assert b"decodepool_operator_errors_total{" not in room.metrics.exposition()


def test_an_object_of_a_childs_name_is_not_taken_over(room: Room) -> None:
    foreign = child(room.raw)
    foreign["metadata"]["ownerReferences"] = []
    room.api.put(foreign)
    outcome = room.do(Plan(apply=(child(room.raw, replicas=3),)))
    assert room.writes() == []
    assert [body["metadata"]["name"] for body in outcome.foreign] == ["chat-worker"]


def test_a_stranger_that_the_server_has_not_in_memory_yet_is_not_taken_over(room: Room) -> None:
    room.api.put(owned_by_nobody(room))
    room.api.lagging.add("chat-worker")
    room.api.refuse("apply", "chat-worker", CONFLICT)
    outcome = room.do(Plan(apply=(child(room.raw, replicas=3),)))
    assert room.writes() == []
    assert [body["metadata"]["name"] for body in outcome.foreign] == ["chat-worker"]


def test_a_stranger_in_a_childs_place_since_it_was_looked_at_is_not_forced_over(room: Room) -> None:
    room.api.put(owned_by_nobody(room))
    room.api.refuse("apply", "chat-worker", CONFLICT)
    outcome = room.do(Plan(apply=(child(room.raw, replicas=3),)), child(room.raw))
    assert room.writes() == [("apply", "chat-worker")]
    assert [body["metadata"]["name"] for body in outcome.foreign] == ["chat-worker"]


def owned_by_nobody(room: Room) -> Object:
    body = child(room.raw)
    body["metadata"]["ownerReferences"] = []
    return body


def test_a_pool_that_was_scaled_meanwhile_is_not_scaled_over(room: Room) -> None:
    room.api.put({**room.raw, "spec": {**room.raw["spec"], "replicas": 9}})
    outcome = room.do(Plan(replicas=2))
    assert (outcome.faults, outcome.scaled) == ([], False)
    assert outcome.change
    assert outcome.change.found == room.api.get(POOLS, "team", "chat")
    assert outcome.change.found["spec"]["replicas"] == 9


def test_an_own_object_that_no_watch_has_told_of_yet_is_applied(room: Room) -> None:
    room.api.put(child(room.raw))
    assert room.do(Plan(apply=(child(room.raw, replicas=3),))).foreign == []
    assert room.writes() == [("apply", "chat-worker")]


def test_an_observed_child_costs_one_request(room: Room) -> None:
    live = room.api.put(child(room.raw))
    room.do(Plan(apply=(child(room.raw, replicas=3),)), live)
    assert room.api.calls == [("apply", "chat-worker")]


def test_a_status_is_replaced_as_a_whole(room: Room) -> None:
    first = room.carrier.write_status(room.raw, {"replicas": 1, "endpoint": "x"})
    second = room.carrier.write_status(first, {"replicas": 2})
    assert second["status"] == {"replicas": 2}


def test_a_label_that_changed_meanwhile_does_not_keep_the_status_from_being_written(room: Room) -> None:
    room.api.put({**room.raw, "metadata": {**room.raw["metadata"], "labels": {"new": "label"}}})
    written = room.carrier.write_status(room.raw, {"replicas": 1})
    assert (written["status"], written["metadata"]["labels"]) == ({"replicas": 1}, {"new": "label"})


def test_a_status_is_not_written_over_a_spec_that_changed(room: Room) -> None:
    changed = {**room.raw["metadata"], "generation": 2}
    room.api.put({**room.raw, "metadata": changed, "spec": {**room.raw["spec"], "replicas": 9}})
    with pytest.raises(PoolChangedError) as told:
        room.carrier.write_status(room.raw, {"replicas": 1})
    assert told.value.found
    assert told.value.found["spec"]["replicas"] == 9
    assert room.api.get(POOLS, "team", "chat")["spec"]["replicas"] == 9
