from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from decodepool_operator.api.kinds import PODS, POOLS
from decodepool_operator.names import SIDECAR_LABEL, PoolKey
from decodepool_operator.planner.state import Object, WorkerReport
from decodepool_operator.shell import reports as module
from decodepool_operator.shell.answers import first_key, queued_of, report_of, settled
from decodepool_operator.shell.pictures import FORGIVEN_MISSES
from decodepool_operator.shell.reports import MAX_ANSWER_BYTES, Reports
from decodepool_operator.shell.store import Store

from tests.operator.pools import pool

KEY = ("team", "chat")
ANSWER = {
    "sessions": {"capacity": 8, "active": 3, "free": 5},
    "measured": {"weight_bytes": 101, "resident_bytes": 1000, "session_bytes": None},
    "system_fingerprint": "dp-0123456789abcdef",
}

READY = {"type": "Ready", "status": "True"}
UNREADY = {"type": "Ready", "status": "False"}


def pod(name: str = "chat-worker-1", component: str = "worker", **status: Any) -> Object:
    labels = {"decodepool.dev/pool": "chat", "app.kubernetes.io/component": component}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels}
    owner = {"kind": "ReplicaSet", "name": f"chat-{component}-5d8f", "controller": True}
    return {
        "metadata": {**metadata, "ownerReferences": [owner]},
        "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [READY], **status},
    }


@dataclass
class Room:
    """Reports of one pool whose pods are one server of this machine."""

    answer: Callable[[web.Request], Awaitable[web.Response]]
    keys: str | None = None
    changes: list[PoolKey] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        self.store = Store()
        raw = pool(auth={"secretRef": {"name": "keys"}} if self.keys is not None else None)
        self.store.put(POOLS, {**raw, "metadata": {**raw["metadata"], "resourceVersion": "1"}})
        self.reports = Reports(self.store, self._secret, self.changes.append)

    async def _secret(self, namespace: str, name: str) -> Object:
        encoded = base64.b64encode((self.keys or "").encode()).decode()
        return {"metadata": {"name": name}, "data": {"token": encoded}}

    async def _serve(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("Authorization"))
        return await self.answer(request)

    def poll(self, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
        async def main() -> None:
            app = web.Application()
            app.router.add_get("/{path:.*}", self._serve)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            monkeypatch.setattr(module, "WORKER_PORT", port)
            monkeypatch.setattr(module, "GATEWAY_PORT", port)
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self.timeout_seconds)) as session:
                for _ in range(times):
                    await self.reports.poll(session)
            await runner.cleanup()

        asyncio.run(main())


async def well(request: web.Request) -> web.Response:
    return web.json_response(ANSWER)


def test_a_worker_is_reported_by_the_plans_names(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(well)
    room.store.put(PODS, pod())
    room.poll(monkeypatch)
    assert room.reports.of(KEY) == {
        "chat-worker-1": WorkerReport(
            "chat-worker-1",
            "uid-chat-worker-1",
            8,
            3,
            {"weight_bytes": 101, "resident_bytes": 1000},
            "dp-0123456789abcdef",
        )
    }


def test_the_pool_is_told_of_only_when_the_picture_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(well)
    room.store.put(PODS, pod())
    room.poll(monkeypatch, times=5)
    assert room.changes == [KEY]


async def hangs(request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


async def is_loading(request: web.Request) -> web.Response:
    return web.json_response({"error": {}}, status=503)


async def talks_nonsense(request: web.Request) -> web.Response:
    return web.Response(text="[1e999")


async def holds_more_than_fits(request: web.Request) -> web.Response:
    return web.json_response({"sessions": {"capacity": 1, "active": 5}})


async def counts_to_infinity(request: web.Request) -> web.Response:
    return web.Response(text='{"sessions": {"capacity": 1e999, "active": 0}}')


async def claims_a_whole_world(request: web.Request) -> web.Response:
    return web.json_response({"sessions": {"capacity": 10**30, "active": 0}})


async def nests_without_end(request: web.Request) -> web.Response:
    return web.Response(text="[" * 200_000)


async def never_ends(request: web.Request) -> web.Response:
    return web.json_response({**ANSWER, "padding": "p" * MAX_ANSWER_BYTES})


async def sends_elsewhere(request: web.Request) -> web.Response:
    raise web.HTTPFound("/elsewhere")


BAD = [
    hangs,
    is_loading,
    talks_nonsense,
    holds_more_than_fits,
    counts_to_infinity,
    claims_a_whole_world,
    nests_without_end,
    never_ends,
    sends_elsewhere,
]


@pytest.mark.parametrize("answer", BAD, ids=lambda each: each.__name__)
def test_a_worker_that_does_not_say_is_missing_and_not_zero(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(answer, timeout_seconds=0.5 if answer is hangs else 10)
    room.store.put(PODS, pod())
    room.poll(monkeypatch)
    assert room.reports.of(KEY) == {}


def test_a_busy_moment_is_forgiven_and_a_lost_worker_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(well)
    room.store.put(PODS, pod())
    room.poll(monkeypatch)
    room.answer = is_loading
    room.poll(monkeypatch, times=FORGIVEN_MISSES)
    assert len(room.reports.of(KEY)) == 1
    room.poll(monkeypatch)
    assert room.reports.of(KEY) == {}


UNASKED = {
    "pending": pod(phase="Pending"),
    "without an address": pod(podIP=""),
    "not ready": pod(conditions=[UNREADY]),
    "a reader": pod(component="reader"),
}


@pytest.mark.parametrize("body", UNASKED.values(), ids=UNASKED)
def test_who_cannot_answer_is_not_asked(body: Object, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(well)
    room.store.put(PODS, body)
    room.poll(monkeypatch)
    assert room.asked == []


def test_a_draining_worker_tells_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    body = pod(conditions=[UNREADY])
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    room = Room(well)
    room.store.put(PODS, body)
    room.poll(monkeypatch)
    assert room.reports.of(KEY)["chat-worker-1"].sessions_active == 3


def test_a_pool_with_keys_is_asked_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(well, keys="# ours\n\nsesame\nother\n")
    room.store.put(PODS, pod())
    room.poll(monkeypatch)
    assert room.asked == ["Bearer sesame"]


def test_a_pods_labels_are_no_proof_that_the_pools_key_is_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may only make pods, and not mount the Secret, makes one that waits for the key on the workers' port."""
    room = Room(well, keys="sesame\n")
    forged = pod("forged")
    forged["metadata"]["ownerReferences"] = []
    room.store.put(PODS, forged)
    room.poll(monkeypatch)
    assert (room.asked, room.reports.of(KEY)) == ([], {})


def test_a_sidecar_is_asked_for_its_open_counts_without_the_pools_key(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(well, keys="sesame\n")
    beside = pod("shop-1")
    beside["metadata"] |= {"ownerReferences": [], "labels": {SIDECAR_LABEL: "chat"}}
    room.store.put(PODS, beside)
    room.poll(monkeypatch)
    assert room.asked == [None]
    assert room.reports.of(KEY)["shop-1"].sessions_active == 3


def test_an_answer_that_comes_in_pieces_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drips(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for byte in json.dumps(ANSWER).encode():
            await answer.write(bytes([byte]))
            await asyncio.sleep(0.0005)
        return answer

    room = Room(drips)  # type: ignore[arg-type] # a stream is answered as well
    room.store.put(PODS, pod())
    room.poll(monkeypatch)
    assert room.reports.of(KEY)["chat-worker-1"].sessions_active == 3


def test_a_key_that_no_header_can_carry_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would refuse it with an error that nobody expects of a request."""
    room = Room(well, keys="ses\x01ame\nother\n")
    room.store.put(PODS, pod())
    room.poll(monkeypatch)
    assert room.asked == ["Bearer other"]


def test_a_pool_that_cannot_be_polled_does_not_keep_another_from_being_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(well)
    broken = pool("broken", auth={"secretRef": {"name": "keys"}})
    broken["metadata"] |= {"uid": "broken-uid", "resourceVersion": "1"}
    room.store.put(POOLS, broken)
    for body in (pod(), pod("broken-worker-1")):
        name = body["metadata"]["labels"]["decodepool.dev/pool"] = body["metadata"]["name"].partition("-")[0]
        body["metadata"]["ownerReferences"][0]["name"] = f"{name}-worker-5d8f"
        room.store.put(PODS, body)

    async def raises(namespace: str, name: str) -> Object:
        raise ValueError("what nobody thought of")

    monkeypatch.setattr(room.reports, "_read_secret", raises)
    room.poll(monkeypatch)
    assert room.reports.of(KEY)["chat-worker-1"].sessions_active == 3


def test_waiting_sessions_are_summed_over_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gateway(request: web.Request) -> web.Response:
        return web.Response(text="# TYPE decodepool_pool_queued gauge\ndecodepool_pool_queued 2.0\n")

    room = Room(gateway)
    for name in ("g1", "g2"):
        room.store.put(PODS, pod(name, "gateway"))
    assert room.reports.queued(KEY) is None
    room.poll(monkeypatch)
    assert room.reports.queued(KEY) == 4


class Gateways:
    """Two gateways, each with two who wait; those that are named do not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.silent: set[str] = set()
        self.room = Room(well)
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(self.room.reports, "_ask_gateway", self._ask)
        for name in ("g1", "g2"):
            self.be(name)

    def be(self, name: str, **status: Any) -> None:
        versions = self.room.store.get(PODS, "team", name) or {"metadata": {"resourceVersion": "0"}}
        body = pod(name, "gateway", **status)
        body["metadata"]["resourceVersion"] = str(int(versions["metadata"]["resourceVersion"]) + 1)
        self.room.store.put(PODS, body)

    async def _ask(self, session: object, limit: object, body: Object) -> int | None:
        return None if body["metadata"]["name"] in self.silent else 2

    def queued(self, polls: int = 1) -> int | None:
        self.room.poll(self._monkeypatch, times=polls)
        return self.room.reports.queued(KEY)


def test_a_queue_is_not_known_while_one_of_the_gateways_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """All who wait may wait at just that one: it is too busy to answer."""
    here = Gateways(monkeypatch)
    assert here.queued() == 4
    here.silent = {"g1"}
    assert here.queued(FORGIVEN_MISSES) == 4, "a busy moment is forgiven, and is no news"
    assert here.room.changes == [KEY]
    assert here.queued() is None
    here.silent = set()
    assert here.queued() == 4


def test_a_gateway_that_was_ready_and_is_not_still_has_who_waits_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Gateways(monkeypatch)
    here.silent = {"g1"}
    here.be("g1", conditions=[UNREADY], containerStatuses=[{"started": True}])
    assert here.queued(FORGIVEN_MISSES + 1) is None
    here.be("g1", conditions=[UNREADY], containerStatuses=[{"started": False}])
    assert here.queued() == 2


def test_nobody_waits_at_a_gateway_that_ends_and_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Gateways(monkeypatch)
    ending = pod("g1", "gateway")
    ending["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "2"}
    here.room.store.put(PODS, ending)
    here.silent = {"g1"}
    assert here.queued() == 2


def test_nothing_is_kept_of_pods_that_went_unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(is_loading)
    for number in range(5):
        body = pod(f"chat-worker-{number}")
        room.store.put(PODS, body)
        room.poll(monkeypatch)
        room.store.remove(PODS, body)
    room.poll(monkeypatch)
    assert not room.reports._pictures[KEY].misses


def test_a_pool_that_went_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(well)
    room.store.put(PODS, pod())
    room.poll(monkeypatch)
    gone = room.store.pool(KEY)
    assert gone
    room.store.remove(POOLS, gone)
    room.poll(monkeypatch)
    assert room.reports.of(KEY) == {}


@pytest.mark.parametrize("told", [None, 7, "", "two words", "x" * 65, "dp-\nforged"])
def test_a_fingerprint_that_is_none_is_not_passed_on(told: Any) -> None:
    assert report_of(pod(), {**ANSWER, "system_fingerprint": told}).fingerprint is None


def report(**measured: int) -> WorkerReport:
    return report_of(pod(), {**ANSWER, "measured": measured})


def test_memory_that_breathes_is_the_same_memory() -> None:
    before = report(resident_bytes=1_000_000, weight_bytes=100)
    assert settled(before, report(resident_bytes=1_009_000, weight_bytes=100)) == before
    assert settled(before, report(resident_bytes=1_020_000, weight_bytes=100)) != before


@pytest.mark.parametrize(
    ("text", "queued"),
    [
        ("", None),
        ("decodepool_pool_queued NaN", None),
        ("other_queued 3", None),
        ('decodepool_pool_queued{pool="a"} 3', 3),
    ],
)
def test_a_gateways_metric_is_read(text: str, queued: int | None) -> None:
    assert queued_of(text) == queued


@pytest.mark.parametrize(
    "encoded",
    [
        None,
        "",
        "!!!",
        *(base64.b64encode(text).decode() for text in (b"\xff\xfe", b"# none\n", b"a\x01b", b"two words")),
    ],
)
def test_a_secret_without_a_key_gives_none(encoded: str | None) -> None:
    assert first_key(encoded) is None
