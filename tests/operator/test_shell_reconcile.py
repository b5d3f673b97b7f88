from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import CHILDREN, POOLS
from decodepool_operator.names import MANAGER, POOL_LABEL
from decodepool_operator.planner.state import Decision, Event, Object, Observed, Plan, Reference
from decodepool_operator.shell.carry_out import Carrier
from decodepool_operator.shell.events import Recorder
from decodepool_operator.shell.metrics import Metrics
from decodepool_operator.shell.observe import World
from decodepool_operator.shell.reconcile import Reconciler, Result, Writers
from decodepool_operator.shell.reports import Reports
from decodepool_operator.shell.resolve import Resolver
from decodepool_operator.shell.settings import Settings
from decodepool_operator.shell.store import Store
from decodepool_operator.shell.work_queue import WorkQueue

from tests.operator.fake_api import FakeApi
from tests.operator.pools import host_path_pool
from tests.operator.simulation import IMAGES

KEY = ("team", "chat")
SERVICE = CHILDREN[2]


def one_service(pool: Object, observed: Observed, now: datetime) -> Plan:
    """A planner that wants one Service, and a status that counts children and repeats faults."""
    owner = {"uid": pool["metadata"]["uid"], "controller": True}
    labels = {POOL_LABEL: "chat", "app.kubernetes.io/managed-by": MANAGER}
    metadata = {"name": "chat", "namespace": "team", "labels": labels, "ownerReferences": [owner]}
    wanted: Object = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {}}
    mine = [child for child in observed.children if child["metadata"].get("ownerReferences") == [owner]]
    status: Object = {"replicas": len(mine), "endpoint": "; ".join(observed.faults)}
    news = (
        (Event("Warning", "Refused", status["endpoint"]),) if observed.faults and status != pool.get("status") else ()
    )
    return Plan(
        apply=() if observed.children else (wanted,),
        status=status,
        writes_status=status != pool.get("status"),
        events=news,
    )


class Room:
    def __init__(self, planner: Callable[[Object, Observed, datetime], Plan] = one_service) -> None:
        self.api = FakeApi()
        self.store = Store()
        self.queue = WorkQueue(time.monotonic)
        self.metrics = Metrics()
        reports = Reports(self.store, self._no_secret, self.queue.add)
        settings = Settings(IMAGES, own_namespace="decodepool-system")
        self.world = World(settings, self.store, reports, Resolver(self._no_secret, self.queue.add))
        writers = Writers(Carrier(self.api, self.metrics), Recorder(self.api))  # type: ignore[arg-type]
        self.reconciler = Reconciler(
            self.world, self.queue, planner, writers, metrics=self.metrics, threads=ThreadPoolExecutor(1)
        )
        self.store.put(POOLS, self.api.put(host_path_pool()))

    async def _no_secret(self, namespace: str, name: str) -> Object:
        raise ApiFault(Refusal.NOT_FOUND, name)

    def look(self) -> Result:
        return asyncio.run(self.reconciler.look(KEY))

    def status(self) -> Any:
        return self.api.get(POOLS, *KEY).get("status")

    def writes(self) -> list[tuple[str, str]]:
        return [call for call in self.api.calls if call[0] not in ("get", "list")]


def test_what_was_written_is_seen_at_once_and_the_third_look_is_quiet() -> None:
    room = Room()
    assert [room.look() for _ in range(3)] == [Result.WRITTEN, Result.WRITTEN, Result.QUIET]
    assert room.status()["replicas"] == 1


def test_an_idle_pool_is_not_written_and_not_asked_for() -> None:
    room = Room()
    for _ in range(3):
        room.look()
    room.api.calls.clear()
    for _ in range(20):
        assert room.look() is Result.QUIET
    assert room.api.calls == []


def test_a_refusal_is_in_the_status_of_the_same_look() -> None:
    room = Room()
    room.api.refuse("apply", "chat", ApiFault(Refusal.QUOTA, "exceeded quota: services"))
    assert room.look() is Result.REFUSED
    assert room.status()["endpoint"] == "Service chat: QuotaExceeded: exceeded quota: services"


def test_a_refusal_that_lasts_is_written_once() -> None:
    room = Room()
    fault = ApiFault(Refusal.QUOTA, "exceeded quota: services")
    room.api.refuse("apply", "chat", *[fault] * 30)
    for _ in range(30):
        room.look()
    assert room.writes().count(("status", "chat")) == 1
    assert len(room.api.of("Event")) == 1


def test_a_refusal_that_ends_leaves_the_status() -> None:
    room = Room()
    room.api.refuse("apply", "chat", ApiFault(Refusal.QUOTA, "exceeded quota: services"))
    for _ in range(3):
        room.look()
    assert room.status() == {"replicas": 1, "endpoint": ""}


def test_a_pool_that_changed_meanwhile_is_looked_at_again_and_not_overwritten() -> None:
    room = Room()
    changed = room.api.get(POOLS, *KEY)
    changed["metadata"]["generation"] += 1
    room.api.put({**changed, "spec": {"changed": True}})
    assert room.look() is Result.STALE
    assert room.status() is None


@pytest.mark.parametrize("fate", ["changed", "gone", "made anew"])
def test_a_pool_that_changed_while_the_watch_is_silent_costs_one_look_and_no_more(fate: str) -> None:
    """A01: the API server may be slow at just this moment."""
    room = Room()
    found = room.api.get(POOLS, *KEY)
    if fate == "gone":
        del room.api.objects["DecodePool", *KEY]
    else:
        change = {"generation": 2} if fate == "changed" else {"uid": "another"}
        room.api.put({**found, "metadata": {**found["metadata"], **change}})
    assert room.look() is Result.STALE
    room.api.calls.clear()
    results = [room.look() for _ in range(5)]
    if fate == "gone":
        assert (set(results), room.api.calls) == ({Result.GONE}, [])
    else:
        assert room.writes().count(("status", "chat")) == 1
        assert results[-1] is Result.QUIET


def test_a_pool_is_scaled_once_and_told_of_once_while_the_watch_is_silent() -> None:
    def scales(pool: Object, observed: Observed, now: datetime) -> Plan:
        replicas = pool["spec"]["replicas"]
        status = {"replicas": replicas}
        if replicas == 3:
            return Plan(status=status, writes_status=status != pool.get("status"))
        event = Event("Normal", "ScaleUp", "from 1 to 3")
        return Plan(replicas=3, status=status, writes_status=True, events=(event,))

    room = Room(scales)
    assert [room.look() for _ in range(3)] == [Result.WRITTEN, Result.WRITTEN, Result.QUIET]
    assert room.writes().count(("scale", "chat")) == room.writes().count(("status", "chat")) == 1
    assert [event["count"] for event in room.api.of("Event")] == [1]
    assert room.status() == {"replicas": 3}


WORKERS: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "chat-worker", "namespace": "team"},
    "spec": {"replicas": 3},
}
POD: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-worker-a", "namespace": "team"}}
ALONE = {
    "annotate": (Plan(annotate=(("chat-worker-a", {"cost": "1"}),)), ("merge", "chat-worker-a")),
    "shrink": (Plan(shrink=(Reference("apps/v1", "Deployment", "chat-worker"), 1)), ("merge", "chat-worker")),
    "apply": (Plan(apply=(WORKERS,)), ("apply", "chat-worker")),
    "delete": (Plan(delete=(Reference("v1", "Pod", "chat-worker-a"),)), ("delete", "chat-worker-a")),
    "replicas": (Plan(replicas=2), ("scale", "chat")),
}
"""A plan of one kind of write, and that write."""


@pytest.mark.parametrize("kind", ALONE)
def test_each_kind_of_write_is_done_where_it_is_all_that_a_plan_has(kind: str) -> None:
    plan, write = ALONE[kind]
    room = Room(lambda pool, observed, now: plan)
    for body in (POD, *([] if kind == "apply" else [WORKERS])):
        room.api.put(body)
    assert not plan.is_quiet
    room.look()
    assert room.writes() == [write]


def test_an_object_that_is_not_the_pools_is_left_alone_and_asked_for_until_it_goes() -> None:
    room = Room()
    stranger = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat", "namespace": "team"}, "spec": {}}
    room.api.put(stranger)
    assert room.look() is Result.REFUSED
    room.look()
    assert ("apply", "chat") not in room.api.calls
    room.api.delete(SERVICE, "team", "chat", None)
    room.look()
    assert ("apply", "chat") in room.api.calls


def test_a_pool_that_goes_is_left_to_its_owner_references() -> None:
    room = Room()
    room.store.put(POOLS, _ending(room.api.get(POOLS, *KEY)))
    assert room.look() is Result.GONE
    assert room.writes() == []


def _ending(pool: Object) -> Object:
    metadata = {**pool["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "999"}
    return {**pool, "metadata": metadata}


def test_nothing_is_written_into_a_namespace_that_ends() -> None:
    room = Room()
    room.api.refuse("apply", "chat", ApiFault(Refusal.TERMINATING, "being terminated"))
    assert room.look() is Result.TERMINATING
    assert ("status", "chat") not in room.api.calls


def test_a_pool_that_breaks_the_planner_is_not_ready_says_so_once_and_is_counted() -> None:
    def broken(pool: Object, observed: Observed, now: datetime) -> Plan:
        raise RuntimeError("a bug")

    room = Room(broken)
    assert [room.look() for _ in range(3)] == [Result.WRITTEN, Result.QUIET, Result.QUIET]
    told = next(each for each in room.status()["conditions"] if each["type"] == "Ready")
    assert (told["status"], told["reason"], told["observedGeneration"]) == ("False", "PlannerFailed", 1)
    assert told["message"].endswith("RuntimeError: a bug")
    assert 'errors_total{reason="Unexpected",where="plan"} 3.0' in room.metrics.exposition().decode()


def test_a_decision_is_a_line_of_the_log_where_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    held = Decision("hold", "2 failures of workers in a row")
    scaled = Decision("scale", "workers: 3 wanted", 2, 3)
    plans = iter([(held,), (held,), (held, scaled), (held,), (), (held,)])
    room = Room(lambda pool, observed, now: Plan(decisions=next(plans)))
    with caplog.at_level("INFO"):
        for _ in range(6):
            room.look()
    lines = [record.fields for record in caplog.records if record.message == "decided"]  # type: ignore[attr-defined]
    known = {"namespace": "team", "pool": "chat"}
    hold = {**known, "decision": "hold", "why": held.why}
    assert lines == [hold, {**known, "decision": "scale", "why": scaled.why, "from": 2, "to": 3}, hold]


def test_a_fault_of_the_shell_stops_one_pool_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(key: object, pool: object) -> Observed:
        raise RuntimeError("a bug")

    room = Room()
    monkeypatch.setattr(room.world, "observe", broken)
    assert room.look() is Result.FAILED
    assert 'decodepool_operator_reconciles_total{result="failed"} 1.0' in room.metrics.exposition().decode()


@pytest.mark.parametrize(
    ("refusal", "result"), [(Refusal.UNAVAILABLE, Result.UNAVAILABLE), (Refusal.FORBIDDEN, Result.FAILED)]
)
def test_a_status_that_is_not_taken_is_a_line_with_the_reason_and_no_fault_of_the_shell(
    caplog: pytest.LogCaptureFixture, refusal: Refusal, result: Result
) -> None:
    room = Room()
    room.api.refuse("status", "chat", ApiFault(refusal, "in the API server's words"))
    assert [room.look() for _ in range(2)] == [result, Result.WRITTEN]
    assert f'errors_total{{reason="{refusal}",where="reconcile"}} 1.0' in room.metrics.exposition().decode()
    [record] = [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]
    told = (record.message, record.exc_info, record.fields["fault"])  # type: ignore[attr-defined]
    assert told == ("a look at a pool was cut short", None, "in the API server's words")
    assert room.status() == {"replicas": 1, "endpoint": ""}


def test_a_plan_that_never_settles_does_not_spin() -> None:
    def restless(pool: Object, observed: Observed, now: datetime) -> Plan:
        return Plan(status={"replicas": (pool.get("status") or {}).get("replicas", 0) + 1}, writes_status=True)

    async def two_seconds(room: Room) -> None:
        room.queue.add(KEY)
        task = asyncio.create_task(room.reconciler.run())
        await asyncio.sleep(2)
        task.cancel()

    room = Room(restless)
    asyncio.run(two_seconds(room))
    assert 2 <= room.writes().count(("status", "chat")) <= 6


def test_a_status_that_somebody_else_writes_too_is_not_fought_over_at_full_speed() -> None:
    def insists(pool: Object, observed: Observed, now: datetime) -> Plan:
        return Plan(status={"replicas": 1}, writes_status=(pool.get("status") or {}).get("replicas") != 1)

    async def contest(room: Room) -> None:
        task = asyncio.create_task(room.reconciler.run())
        for other in range(40):
            body = {**room.api.get(POOLS, *KEY), "status": {"replicas": 100 + other}}
            room.store.put(POOLS, room.api.put(body))
            room.queue.add(KEY)
            await asyncio.sleep(0.05)
        task.cancel()

    room = Room(insists)
    asyncio.run(contest(room))
    assert room.writes().count(("status", "chat")) <= 6


def test_a_rollout_that_moves_is_followed_without_delay() -> None:
    def follows(pool: Object, observed: Observed, now: datetime) -> Plan:
        seen = (pool["metadata"].get("annotations") or {}).get("step", "0")
        status = {"workers": seen}
        return Plan(status=status, writes_status=status != pool.get("status"))

    async def rollout(room: Room) -> list[float]:
        task = asyncio.create_task(room.reconciler.run())
        waits = []
        for step in range(12):
            body = room.api.get(POOLS, *KEY)
            body["metadata"]["annotations"] = {"step": str(step)}
            room.store.put(POOLS, room.api.put(body))
            room.queue.add(KEY)
            begin = time.monotonic()
            for _ in range(500):
                if (room.status() or {}).get("workers") == str(step):
                    break
                await asyncio.sleep(0.01)
            waits.append(time.monotonic() - begin)
        task.cancel()
        return waits

    waits = sorted(asyncio.run(rollout(Room(follows))))
    assert waits[-3] < 1, "a contest would double each; the two longest are whatever else the machine did"


def test_the_planner_is_told_where_the_operator_itself_is() -> None:
    seen: list[Observed] = []

    def looks(raw: Object, observed: Observed, now: datetime) -> Plan:
        seen.append(observed)
        return Plan()

    Room(looks).look()
    assert seen[0].operator_namespace == "decodepool-system"
