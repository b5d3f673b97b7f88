from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.names import PoolKey
from decodepool_operator.planner.resolution import source_key
from decodepool_operator.planner.state import Object, Resolved, Resolving, Unresolved
from decodepool_operator.shell.resolve import (
    FIRST_RETRY_SECONDS,
    LONGEST_RETRY_SECONDS,
    READS_AT_ONCE,
    Resolver,
    read_model,
)
from decodepool_operator.shell.work_queue import WorkQueue
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.facts import ModelFacts, fault_reason

from tests.operator.pools import URL, facts, host_path_pool, pool
from tests.sizing.gguf_bytes import tiny
from tests.sizing.test_ranged_http import served

KEY = ("team", "chat")


class Room:
    """A resolver whose reads and whose clock belong to the test."""

    def __init__(self, *answers: ModelFacts | BadModelFile, secret: Object | None = None) -> None:
        self.answers = list(answers)
        self.secret = secret
        self.reads: list[tuple[str, Mapping[str, str], str | None]] = []
        self.again: list[PoolKey] = []
        self.resolver = Resolver(self._read_secret, self.again.append, self._read)

    def _read(self, url: str, headers: Mapping[str, str], sha256: str | None) -> ModelFacts:
        self.reads.append((url, headers, sha256))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _read_secret(self, namespace: str, name: str) -> Object:
        if self.secret is None:
            raise ApiFault(Refusal.NOT_FOUND, name)
        return self.secret

    async def settle(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0.005)
            if self.again:
                return


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_a_source_is_read_once_and_its_pools_are_looked_at_then() -> None:
    async def scenario() -> None:
        room, raw, twin = Room(facts()), pool(), pool("twin")
        assert room.resolver.resolution(raw) == Resolving(f"reading the header behind {URL}")
        room.resolver.resolution(twin)
        await room.settle()
        assert set(room.again) == {KEY, ("team", "twin")}
        for _ in range(5):
            assert room.resolver.resolution(raw) == Resolved(facts(), source_key(raw))
        assert len(room.reads) == 1

    run(scenario)


def test_what_is_in_the_status_is_not_read_again() -> None:
    async def scenario() -> None:
        room, raw = Room(facts()), pool()
        raw["status"] = {"model": {"source": source_key(raw), "facts": facts().to_json()}}
        assert room.resolver.resolution(raw) is None
        await asyncio.sleep(0.01)
        assert room.reads == []

    run(scenario)


def test_other_sources_are_not_the_resolvers() -> None:
    assert Room(facts()).resolver.resolution(host_path_pool()) is None


def test_a_broken_source_is_tried_again_with_growing_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        room, raw = Room(BadModelFile("the server answers 404 Not Found")), pool()
        gaps = []
        for _ in range(8):
            for _ in range(10):  # however often the pool is looked at
                room.resolver.resolution(raw)
            await room.settle()
            gaps.append(_wait_seconds(room.resolver))
            room.again.clear()
            assert room.resolver.resolution(raw) == Unresolved(
                "NotFound", "the server answers 404 Not Found", source_key(raw)
            )
            _let_time_pass(room.resolver)
        assert len(room.reads) == 8
        assert gaps[:3] == pytest.approx([FIRST_RETRY_SECONDS * times for times in (1, 2, 4)], abs=1.0)
        assert max(gaps) == pytest.approx(LONGEST_RETRY_SECONDS, abs=1.0)

    run(scenario)


def _wait_seconds(resolver: Resolver) -> float:
    (source,) = resolver._sources.values()
    return source.retry_at - asyncio.get_running_loop().time()


def test_the_next_try_comes_by_itself_though_the_pool_was_looked_at_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodepool_operator.shell.resolve.FIRST_RETRY_SECONDS", 0.05)

    async def scenario() -> None:
        room, raw = Room(BadModelFile("the server answers 404 Not Found"), facts()), pool()
        queue = WorkQueue(asyncio.get_running_loop().time)
        resolver = Resolver(room._read_secret, queue.add, room._read)
        queue.add(KEY)
        while not isinstance(resolver.resolution(raw), Resolved):
            key = await asyncio.wait_for(queue.get(), 5)
            resolver.resolution(raw)
            queue.done(key)
        assert len(room.reads) == 2

    run(scenario)


def _let_time_pass(resolver: Resolver) -> None:
    for source in resolver._sources.values():
        source.retry_at = 0.0


def test_a_header_that_breaks_the_reader_is_told_and_tried_again_later() -> None:
    async def scenario() -> None:
        room, raw = Room(facts()), pool()
        room.answers = [RecursionError("too deep")]  # type: ignore[list-item] # what no reader should raise
        room.resolver.resolution(raw)
        await room.settle()
        answer = room.resolver.resolution(raw)
        assert isinstance(answer, Unresolved)
        assert answer.message == "the header cannot be made sense of (RecursionError)"

    run(scenario)


def test_a_source_that_is_mended_is_found() -> None:
    async def scenario() -> None:
        room, raw = Room(BadModelFile("cannot be fetched: refused"), facts()), pool()
        room.resolver.resolution(raw)
        await room.settle()
        _let_time_pass(room.resolver)
        room.again.clear()
        room.resolver.resolution(raw)
        await room.settle()
        assert isinstance(room.resolver.resolution(raw), Resolved)

    run(scenario)


def secret(value: bytes, key: str = "token") -> Object:
    return {"metadata": {"name": "hub"}, "data": {key: base64.b64encode(value).decode()}}


def private_pool() -> Object:
    return pool(model={"source": {"http": {"url": URL, "sha256": "a" * 64, "secretRef": {"name": "hub"}}}})


def test_the_token_and_the_digest_go_with_the_read() -> None:
    async def scenario() -> None:
        room = Room(facts(), secret=secret(b"sesame\n"))
        room.resolver.resolution(private_pool())
        await room.settle()
        assert room.reads == [(URL, {"Authorization": "Bearer sesame"}, "a" * 64)]

    run(scenario)


SECRETS: dict[str, tuple[Object | None, str]] = {
    "missing": (None, "SecretNotFound"),
    "without the key": (secret(b"x", "password"), "SecretNotFound"),
    "empty": (secret(b"\n"), "SecretInvalid"),
    "of two lines": (secret(b"a\r\nX-Evil: 1"), "SecretInvalid"),
    "not text": (secret(b"\xff\xfe"), "SecretInvalid"),
    "not base64": ({"metadata": {"name": "hub"}, "data": {"token": "!"}}, "SecretInvalid"),
}


@pytest.mark.parametrize(("found", "reason"), SECRETS.values(), ids=SECRETS)
def test_a_secret_that_holds_no_token_is_told_and_never_shown(found: Object | None, reason: str) -> None:
    async def scenario() -> None:
        room, raw = Room(facts(), secret=found), private_pool()
        room.resolver.resolution(raw)
        await room.settle()
        answer = room.resolver.resolution(raw)
        assert isinstance(answer, Unresolved)
        assert answer.reason == reason
        assert "Evil" not in answer.message
        assert room.reads == []

    run(scenario)


@pytest.mark.parametrize("at_once", [1, 2 * READS_AT_ONCE])
def test_slow_servers_of_a_namespace_hold_up_nobody_elses_reading(at_once: int) -> None:
    async def scenario() -> None:
        released = threading.Event()

        def read(url: str, headers: Any, sha256: Any) -> ModelFacts:
            if "slow" in url:
                released.wait(5)
            return facts()

        again: list[PoolKey] = []
        room = Room(facts())
        resolver = Resolver(room._read_secret, again.append, read)
        for number in range(at_once):
            slow = pool("slow", model={"source": {"http": {"url": f"http://slow.example/{number}.gguf"}}})
            slow["metadata"]["namespace"] = "busy"
            resolver.resolution(slow)
        await asyncio.sleep(0.05)
        resolver.resolution(pool("quick"))
        for _ in range(100):
            await asyncio.sleep(0.005)
        assert again == [("team", "quick")]
        released.set()

    run(scenario)


def test_nothing_is_kept_of_a_namespace_in_which_nothing_is_read() -> None:
    async def scenario() -> None:
        room = Room(facts())
        room.resolver.resolution(pool())
        await asyncio.sleep(0)
        assert list(room.resolver._limits) == ["team"]
        await room.settle()
        await asyncio.sleep(0)
        assert not room.resolver._limits

    run(scenario)


def test_a_url_is_told_without_what_may_be_secret_in_it(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        room = Room(facts())
        room.answers = [TypeError("what no reader should raise")]  # type: ignore[list-item]
        raw = pool(model={"source": {"http": {"url": "https://user:sesame@models.example/x.gguf?token=sesame"}}})
        first = room.resolver.resolution(raw)
        assert first == Resolving("reading the header behind https://models.example/x.gguf")
        await room.settle()
        assert caplog.records
        assert "sesame" not in str([record.__dict__ for record in caplog.records])

    run(scenario)


def test_a_header_is_not_read_from_the_machine_itself_unless_that_was_allowed() -> None:
    with served(tiny()) as server:
        with pytest.raises(BadModelFile) as told:
            read_model(server.url, {}, None)
        assert fault_reason(told.value) == "Unreachable"
        assert server.ranges == []
        assert read_model(server.url, {}, None, local_addresses=True).file_bytes == len(tiny())
