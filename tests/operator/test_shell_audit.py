from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from decodepool_operator.api.kinds import POOLS
from decodepool_operator.shell.audit import CATCH_UP_SECONDS, Audit
from decodepool_operator.shell.handlers import Watches
from decodepool_operator.shell.health import Health
from decodepool_operator.shell.metrics import Metrics
from decodepool_operator.shell.store import Store
from decodepool_operator.shell.work_queue import WorkQueue

from tests.operator.fake_api import FakeApi
from tests.operator.pools import pool


class Room:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.queue = WorkQueue(time.monotonic)
        self.watches = Watches(Store(), self.queue, Metrics())
        self.health = Health(120)
        self.audit = Audit(self.api, self.watches, self.health, ThreadPoolExecutor(1), [None])  # type: ignore[arg-type]

    def check(self) -> int:
        return asyncio.run(self.audit.check(POOLS, grace_seconds=0))

    def told(self, name: str = "chat") -> Any:
        body = self.api.put(pool(name))
        self.watches.saw(POOLS, body)
        return body


@pytest.fixture
def room() -> Room:
    return Room()


def test_the_store_has_caught_up_once_all_that_is_listed_was_told(room: Room) -> None:
    bodies = [room.api.put(pool(name)) for name in ("one", "two")]

    async def told_one_by_one() -> None:
        waiting = asyncio.create_task(room.audit.caught_up([POOLS]))
        for body in bodies:
            await asyncio.sleep(2 * CATCH_UP_SECONDS)
            assert not waiting.done()
            room.watches.saw(POOLS, body)
        await asyncio.wait_for(waiting, 5)

    asyncio.run(told_one_by_one())


def test_what_goes_before_it_was_told_is_not_waited_for(room: Room) -> None:
    room.api.put(pool("brief"))

    async def gone_meanwhile() -> None:
        waiting = asyncio.create_task(room.audit.caught_up([POOLS]))
        await asyncio.sleep(CATCH_UP_SECONDS / 2)
        room.api.objects.clear()
        room.api.put(pool("later"))
        await asyncio.wait_for(waiting, 5)

    asyncio.run(gone_meanwhile())


def test_watches_that_tell_everything_are_found_sound(room: Room) -> None:
    room.told()
    assert room.check() == 0
    assert room.api.calls == [("list", "decodepools")]


def test_a_deletion_that_no_watch_told_of_is_found(room: Room) -> None:
    room.told()
    room.api.objects.clear()
    assert room.check() == 1
    assert room.watches.store.pools() == ()


def test_a_change_that_no_watch_told_of_is_found_and_handled(room: Room) -> None:
    body = room.told()
    body["spec"]["replicas"] = 5
    room.api.put(body)
    assert room.check() == 1
    found = room.watches.store.pool(("team", "chat"))
    assert found is not None
    assert found["spec"]["replicas"] == 5
    assert room.queue.depth == 1


def test_an_object_that_no_watch_told_of_is_found(room: Room) -> None:
    room.api.put(pool("quiet"))
    assert room.check() == 1
    assert room.watches.store.pools() == (("team", "quiet"),)


def test_a_watch_that_is_behind_again_and_again_is_a_trouble(room: Room) -> None:
    for name in ("one", "two"):
        room.api.put(pool(name))
        room.check()
    assert room.health.troubles() == ["the watch of decodepools keeps changes to itself"]
