"""Changes, refusals and other writers: what the operator makes of them on a real API server."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from decodepool_operator.api.faults import ApiFault
from decodepool_operator.api.kinds import EVENTS, PODS, POOLS, Kind
from decodepool_operator.planner.objects.gateway import ACCOUNT
from decodepool_operator.planner.state import Plan
from decodepool_operator.shell.carry_out import FORCES, Carrier
from decodepool_operator.shell.metrics import Metrics

from tests.cluster.shell.plane import DEPLOYMENTS, TESTER, OperatorProcess, Plane, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

QUOTAS = Kind("", "v1", "ResourceQuota", "resourcequotas")
ACCOUNTS = Kind("", "v1", "ServiceAccount", "serviceaccounts")
SERVICES = Kind("", "v1", "Service", "services")
ROUNDS = 20
IDLE_SECONDS = 30
WRITES = "decodepool_operator_writes_total"


def test_no_change_is_lost_however_close_it_comes_to_another(
    plane: Plane, space: str, model: str, operator: OperatorProcess
) -> None:
    """A02, a change that lands while another is handled: the last one holds, with a writer of the status beside."""
    plane.make(space, "chat", model, sessionsPerWorker=4)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    chance, over = random.Random(2), threading.Event()

    def write_status() -> None:
        while not over.wait(0.05):
            with suppress(ApiFault):
                plane.change(POOLS, space, "chat", {"status": {"endpoint": f"x{chance.random()}"}}, "status")

    with plane.cluster.entered():
        writer = threading.Thread(target=write_status)
        writer.start()
    try:
        for last in range(ROUNDS):
            wanted = [8, 6 + last % 2] if last % 3 else [8, 6, 8]
            for sessions in wanted:
                plane.set_spec(space, "chat", sessionsPerWorker=sessions)
                time.sleep(chance.uniform(0, 0.4))
            plane.change(POOLS, space, "chat", {"metadata": {"annotations": {"round": str(last)}}})
            until(partial(plane.follows, space, "chat", wanted[-1]), f"round {last} to be followed")
    finally:
        over.set()
        writer.join()


def test_an_idle_pool_is_never_written(plane: Plane, space: str, model: str, operator: OperatorProcess) -> None:
    """A06, status writes that wake their writer."""
    plane.make(space, "chat", model, sessionsPerWorker=4)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    time.sleep(5)
    writes = operator.metric(WRITES)
    assert versions_in(plane, space, IDLE_SECONDS) == 1
    assert operator.metric(WRITES) == writes


LIMITS = {"its services": ("count/services", 0), "its pods": ("requests.memory", "1Mi")}


@pytest.mark.parametrize(("resource", "most"), LIMITS.values(), ids=LIMITS)
def test_a_quota_that_refuses_is_told_once_and_is_no_hot_loop(
    plane: Plane, space: str, model: str, operator: OperatorProcess, resource: str, most: Any
) -> None:
    """A06, status writes that wake their writer, where something is refused for good."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {resource: most}}}
    plane.api.call("POST", QUOTAS.path(space), quota)
    until(lambda: "hard" in (plane.api.get(QUOTAS, space, "q").get("status") or {}), "the quota to be counted")
    plane.make(space, "chat", model, sessionsPerWorker=4)

    def told() -> bool:
        conditions = (plane.pool(space, "chat").get("status") or {}).get("conditions") or []
        return any("exceeded quota" in each["message"] for each in conditions)

    until(told, "the quota in a condition", 60)
    time.sleep(10)
    writes, events = operator.metric(WRITES), len(events_of(plane, space))
    assert versions_in(plane, space, IDLE_SECONDS) <= 2, "the status stays as it is"
    assert operator.metric(WRITES) - writes <= 10, "tries back off"
    assert len(events_of(plane, space)) == events, "Events are folded"


def versions_in(plane: Plane, space: str, seconds: float) -> int:
    """Watch a pool for some seconds; return how many states of it there were."""
    seen, end = set(), time.monotonic() + seconds
    while time.monotonic() < end:
        seen.add(plane.pool(space, "chat")["metadata"]["resourceVersion"])
        time.sleep(0.1)
    return len(seen)


def events_of(plane: Plane, space: str) -> list[Any]:
    items = plane.api.call("GET", EVENTS.path(space))["items"]
    return [each for each in items if each["involvedObject"]["kind"] == POOLS.name]


def test_a_field_taken_once_is_taken_back(plane: Plane, space: str, model: str, operator: OperatorProcess) -> None:
    plane.make(space, "chat", model, sessionsPerWorker=4, replicas=2)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    plane.change(DEPLOYMENTS, space, "chat-worker", {"spec": {"replicas": 9}})
    until(lambda: plane.api.get(DEPLOYMENTS, space, "chat-worker")["spec"]["replicas"] == 2, "2 replicas again")


def test_a_deployment_that_somebody_paused_goes_on(
    plane: Plane, space: str, model: str, operator: OperatorProcess
) -> None:
    """`kubectl rollout pause` would let no repair through, and nobody would be told."""
    plane.make(space, "chat", model, sessionsPerWorker=4)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    for name in ("chat-worker", "chat-gateway"):
        plane.cluster.kubectl("rollout", "pause", f"deployment/{name}", "--namespace", space)
        until(partial(goes_on, plane, space, name), f"{name} to go on")


def goes_on(plane: Plane, space: str, name: str) -> bool:
    return not plane.api.get(DEPLOYMENTS, space, name)["spec"].get("paused")


def test_gateways_are_made_anew_where_their_account_was_and_only_then(
    plane: Plane, space: str, model: str, operator: OperatorProcess
) -> None:
    """They go on with a token of the account before, which the API server refuses."""
    plane.make(space, "chat", model, sessionsPerWorker=4)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    until(lambda: len(names_of_gateways(plane, space)) == 2, "the gateways' pods")
    before = names_of_gateways(plane, space)
    assert account_of(plane, space) is None
    time.sleep(2)  # times of creation are whole seconds
    plane.api.call("DELETE", ACCOUNTS.path(space, "chat-gateway"))
    until(lambda: account_of(plane, space) == uid_of_account(plane, space), "a template of the new account")
    until(lambda: names_of_gateways(plane, space) - before, "a gateway of the new account")
    made = plane.api.get(DEPLOYMENTS, space, "chat-gateway")["metadata"]["generation"]
    plane.set_spec(space, "chat", sessionsPerWorker=6)
    until(lambda: plane.follows(space, "chat", 6), "the change to be followed")
    assert plane.api.get(DEPLOYMENTS, space, "chat-gateway")["metadata"]["generation"] == made


def account_of(plane: Plane, space: str) -> str | None:
    annotations = plane.api.get(DEPLOYMENTS, space, "chat-gateway")["spec"]["template"]["metadata"]["annotations"]
    found: str | None = annotations.get(ACCOUNT)
    return found


def uid_of_account(plane: Plane, space: str) -> str:
    uid: str = plane.api.get(ACCOUNTS, space, "chat-gateway")["metadata"]["uid"]
    return uid


def names_of_gateways(plane: Plane, space: str) -> set[str]:
    return {name for name in plane.names(PODS, space) if name.startswith("chat-gateway-")}


def test_a_manager_that_insists_is_told_of_and_not_fought(
    plane: Plane, space: str, model: str, operator: OperatorProcess
) -> None:
    plane.make(space, "chat", model, sessionsPerWorker=4, replicas=2)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        plane.change(DEPLOYMENTS, space, "chat-worker", {"spec": {"replicas": 9}})
        time.sleep(0.2)
    worker = plane.api.get(DEPLOYMENTS, space, "chat-worker")
    assert worker["spec"]["replicas"] == 9
    assert worker["metadata"]["generation"] <= 2 + 2 * FORCES
    until(lambda: "tester" in plane.condition(space, "chat", "Degraded").get("message", ""), "the other manager's name")
    plane.set_spec(space, "chat", replicas=3)
    until(lambda: plane.api.get(DEPLOYMENTS, space, "chat-worker")["spec"]["replicas"] == 3, "the owner's new wish")


def test_a_child_that_is_deleted_comes_back(plane: Plane, space: str, model: str, operator: OperatorProcess) -> None:
    plane.make(space, "chat", model, sessionsPerWorker=4)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    made = plane.children(space)
    for kind, name in (("Deployment", "chat-worker"), ("Service", "chat")):
        plane.delete(DEPLOYMENTS if kind == "Deployment" else SERVICES, space, name)
    until(lambda: plane.children(space) == made, "every child to be there again")


def test_a_child_that_loses_its_label_gets_it_again_and_is_known_again(
    plane: Plane, space: str, model: str, operator: OperatorProcess
) -> None:
    plane.make(space, "chat", model, sessionsPerWorker=4)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    made, label = plane.children(space), "app.kubernetes.io/managed-by"
    plane.change(SERVICES, space, "chat", {"metadata": {"labels": {label: None}}})
    until(lambda: label in plane.api.get(SERVICES, space, "chat")["metadata"]["labels"], "the label to be back")
    time.sleep(5)
    writes = operator.metric(WRITES)
    plane.change(POOLS, space, "chat", {"metadata": {"labels": {"looked-at": "again"}}})
    time.sleep(5)
    assert operator.metric(WRITES) == writes, "what is not known is written at every look"
    assert plane.children(space) == made


def test_a_pool_that_was_scaled_since_it_was_looked_at_is_not_scaled_over(plane: Plane, space: str, model: str) -> None:
    plane.make(space, "chat", model)
    carrier, seen = Carrier(plane.api, Metrics()), plane.pool(space, "chat")
    plane.set_spec(space, "chat", replicas=5)
    assert carrier.carry_out(seen, Plan(replicas=2), {}).faults == []
    assert plane.pool(space, "chat")["spec"]["replicas"] == 5
    assert carrier.carry_out(plane.pool(space, "chat"), Plan(replicas=2), {}).faults == []
    assert plane.pool(space, "chat")["spec"]["replicas"] == 2


def test_a_pool_is_scaled_down_though_its_spec_cannot_be_planned(
    plane: Plane, space: str, model: str, operator: OperatorProcess
) -> None:
    plane.make(space, "chat", model, sessionsPerWorker=4, replicas=3)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    plane.set_spec(space, "chat", replicas=1, accelerator={"memory": "1Mi"})
    until(lambda: plane.condition(space, "chat", "CapacityPlanned")["reason"] == "CannotFit", "the refusal")
    workers = partial(plane.api.get, DEPLOYMENTS, space, "chat-worker")
    until(lambda: workers()["spec"]["replicas"] == 1, "fewer workers")
    assert "--sessions=4" in workers()["spec"]["template"]["spec"]["containers"][0]["args"]


def test_a_strangers_service_is_not_taken_over_and_its_name_is_used_once_it_is_free(
    plane: Plane, space: str, model: str, operator: OperatorProcess
) -> None:
    metadata = {"name": "chat-workers"}
    spec = {"ports": [{"port": 1}], "selector": {"app": "other"}}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    plane.api.call("POST", SERVICES.path(space), body, query=TESTER)
    plane.make(space, "chat", model, sessionsPerWorker=4)
    until(
        lambda: "chat-workers" in plane.condition(space, "chat", "Degraded").get("message", ""), "the stranger's name"
    )
    assert plane.api.get(SERVICES, space, "chat-workers")["spec"]["selector"] == {"app": "other"}
    plane.delete(SERVICES, space, "chat-workers")
    until(lambda: ("Service", "chat-workers") in plane.children(space), "the pool's own Service", 90)


def test_deleting_a_pool_needs_no_operator_and_leaves_nothing(
    plane: Plane, space: str, model: str, operator: OperatorProcess
) -> None:
    """A03, deletion without an operator."""
    plane.make(space, "chat", model, sessionsPerWorker=4)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    assert "finalizers" not in plane.pool(space, "chat")["metadata"]
    operator.kill()
    plane.delete(POOLS, space, "chat")
    until(lambda: not plane.children(space), "all children to go", 60)
