"""Who gets which place, without a worker: places as reported, guessed in between, and queued for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from decodepool_gateway.kept_sessions import worker_of
from decodepool_gateway.placements import Place, Placements, QueueLimits
from decodepool_gateway.pool import Pool
from decodepool_gateway.workers import Worker, WorkerAddress
from decodepool_sizing.api_errors import ApiError
from decodepool_sizing.session_ids import session_id
from hypothesis import given
from hypothesis import strategies as st


def report(free: int, capacity: int = 4) -> dict[str, Any]:
    return {"sessions": {"capacity": capacity, "active": capacity - free, "free": free}}


def address(name: str, **more: Any) -> WorkerAddress:
    return WorkerAddress(name, name, f"http://{name}", **{"ready": True, **more})


def pool_of(*free: int) -> Pool:
    """A pool of workers a, b, ... with so many free places of four; among equals, the first."""
    pool = Pool(draw=lambda workers: min(workers, key=lambda worker: worker.address.name))
    pool.discovered([address(chr(97 + i)) for i in range(len(free))])
    for worker, places in zip(pool.workers, free, strict=True):
        worker.reported(report(places), asked_at=-100.0)
    return pool


def names(pool: Pool, count: int) -> list[str | None]:
    """Where that many sessions would go, one after the other."""
    found: list[str | None] = []
    for _ in range(count):
        worker = pool.roomiest()
        found.append(worker.address.name if worker else None)
        if worker:
            worker.take(0.0)
    return found


def test_a_session_goes_where_most_room_is() -> None:
    assert names(pool_of(1, 4, 2), 8) == ["b", "b", "b", "c", "a", "b", "c", None]


@pytest.mark.parametrize(
    "change",
    [
        {"ready": False},
        {"draining": True},
    ],
    ids=["unready", "draining"],
)
def test_only_ready_workers_get_sessions(change: dict[str, bool]) -> None:
    pool = pool_of(1, 4)
    pool.discovered([address("a"), address("b", **change)])
    assert names(pool, 2) == ["a", None]
    assert pool.find(address("b").tag), "its sessions are still found"


def test_a_worker_counts_once_it_has_reported() -> None:
    pool = pool_of(1)
    pool.discovered([address("a"), address("new")])
    assert [worker.address.name for worker in pool.admitting] == ["a"]


def test_a_worker_that_left_is_remembered_by_name() -> None:
    pool = pool_of(1, 1)
    gone = address("b").tag
    pool.discovered([address("a")])
    assert (pool.find(gone), pool.departed(gone), pool.departed("0123456789")) == (None, "b", None)
    pool.discovered([address("a"), address("b")])
    assert pool.departed(gone) is None, "it is back"


def test_a_worker_at_another_address_is_another_until_it_reports() -> None:
    pool = pool_of(2)
    pool.discovered([WorkerAddress("a", "a", "http://elsewhere", ready=True)])
    assert not pool.admitting


def test_a_session_on_a_worker_that_another_gateway_heard_of_first_is_found() -> None:
    async def test() -> None:
        pool = pool_of(1)
        new = address("new")
        asking = asyncio.create_task(worker_of(pool, session_id("x" * 22, new.tag)))
        await asyncio.sleep(0.1)
        pool.discovered([address("a"), new])
        assert (await asking).address == new

    run(test)


@pytest.mark.parametrize("tag", [None, "0123456789", address("b").tag], ids=["none", "unknown", "departed"])
def test_a_session_of_no_worker_is_unknown_or_gone(tag: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodepool_gateway.kept_sessions.NEWS_SECONDS", 0.1)

    async def test() -> None:
        pool = pool_of(1, 1)
        pool.discovered([address("a")])
        with pytest.raises(ApiError) as refused:
            await worker_of(pool, session_id("x" * 22, tag))
        assert refused.value.code == ("session_gone" if tag == address("b").tag else "unknown_session")

    run(test)


def test_departed_workers_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodepool_gateway.pool.REMEMBERED_WORKERS", 2)
    pool = pool_of(1, 1, 1)
    pool.discovered([])
    assert [pool.departed(address(name).tag) for name in "abc"].count(None) == 1


# What a report says, and what happened around it.

TAKE, GIVE = Worker.take, Worker.give


@pytest.mark.parametrize(
    ("events", "asked_at", "free"),
    [
        ([], 10.0, 2),
        ([(TAKE, 10.5)], 10.0, 1),
        ([(TAKE, 9.9)], 10.0, 1),  # it may still be on its way to the worker
        ([(TAKE, 9.0)], 10.0, 2),  # the report has counted it
        ([(GIVE, 10.5)], 10.0, 3),
        ([(GIVE, 9.9)], 10.0, 2),
        ([(TAKE, 10.5)] * 5, 10.0, 0),
        ([(GIVE, 10.5)] * 5, 10.0, 4),
    ],
)
def test_a_report_and_what_came_after_it_make_the_estimate(
    events: Sequence[tuple[Callable[[Worker, float], object], float]], asked_at: float, free: int
) -> None:
    worker = Worker(address("a"))
    worker.reported(report(0), 0.0)
    for event, at in events:
        event(worker, at)
    worker.reported(report(2), asked_at)
    assert worker.free == free


def test_an_answered_placement_is_counted_by_the_next_report() -> None:
    worker = Worker(address("a"))
    worker.reported(report(2), 0.0)
    worker.take(9.9).settle(9.95)
    worker.reported(report(1), 10.0)
    assert worker.free == 1


def test_a_refusal_is_believed_until_the_next_report() -> None:
    worker = Worker(address("a"))
    worker.reported(report(3), 0.0)
    worker.full()
    assert worker.free == 0
    worker.reported(report(1), 5.0)
    assert worker.free == 1


def test_one_missing_report_is_forgiven() -> None:
    worker = Worker(address("a"))
    worker.reported(report(1), 0.0)
    worker.missed()
    assert worker.admits
    worker.reported(report(1), 1.0)
    worker.missed()
    assert worker.admits
    worker.missed()
    assert (worker.admits, worker.state) == (False, "unreachable")
    worker.reported(report(1), 2.0)
    assert worker.admits


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "full", "report"]), st.integers(0, 4)), max_size=30))
def test_an_estimate_is_never_beyond_what_a_worker_can_have(events: list[tuple[str, int]]) -> None:
    worker = Worker(address("a"))
    for now, (event, free) in enumerate(events):
        match event:
            case "take":
                worker.take(now)
            case "give":
                worker.give(now)
            case "full":
                worker.full()
            case _:
                worker.reported(report(free), now)
        assert 0 <= worker.free <= worker.capacity <= 4


# The queue.


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


def queue(pool: Pool, length: int = 3, seconds: float = 5.0) -> Placements:
    return Placements(pool, QueueLimits(length, seconds), asyncio.get_running_loop().time)


async def waiting(placements: Placements, count: int) -> list[asyncio.Task[Place]]:
    """That many requests, in order, all of them in the queue."""
    tasks = []
    for _ in range(count):
        tasks.append(asyncio.create_task(placements.place(placements.ticket())))
        await asyncio.sleep(0)
    return tasks


def test_places_go_to_those_who_wait_in_the_order_of_asking() -> None:
    async def test() -> None:
        pool = pool_of(0)
        placements = queue(pool)
        tasks = await waiting(placements, 3)
        for i in range(3):
            placements.released(pool.workers[0])
            await asyncio.sleep(0)
            assert [task.done() for task in tasks] == [j <= i for j in range(3)]
        assert placements.queued == 0

    run(test)


def test_a_refused_request_is_at_the_head_again() -> None:
    async def test() -> None:
        pool = pool_of(1)
        placements = queue(pool, length=2)
        ticket = placements.ticket()
        place = await placements.place(ticket)
        others = await waiting(placements, 2)
        place.worker.full()
        again = asyncio.create_task(placements.place(ticket))
        await asyncio.sleep(0)
        placements.released(pool.workers[0])
        await asyncio.sleep(0)
        assert again.done()
        assert not any(task.done() for task in others)
        for task in others:
            task.cancel()

    run(test)


def test_nobody_overtakes_those_who_wait() -> None:
    async def test() -> None:
        pool = pool_of(0)
        placements = queue(pool)
        (first,) = await waiting(placements, 1)
        pool.workers[0].reported(report(1), 100.0)  # the queue has not heard of it yet
        (second,) = await waiting(placements, 1)
        pool.changed()
        await asyncio.sleep(0)
        assert (first.done(), second.done()) == (True, False)
        second.cancel()

    run(test)


def test_a_client_that_leaves_makes_way() -> None:
    async def test() -> None:
        pool = pool_of(0)
        placements = queue(pool)
        first, second = await waiting(placements, 2)
        first.cancel()
        await asyncio.sleep(0)
        assert placements.queued == 1
        placements.released(pool.workers[0])
        await asyncio.sleep(0)
        assert second.done()

    run(test)


def test_a_client_that_leaves_as_its_place_comes_gives_it_back() -> None:
    async def test() -> None:
        pool = pool_of(0)
        placements = queue(pool)
        first, second = await waiting(placements, 2)
        placements.released(pool.workers[0])  # it is the first one's, who has not heard yet
        first.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert first.cancelled()
        assert second.done()

    run(test)


@pytest.mark.parametrize(
    ("workers", "code"), [((0, 0), "no_free_session"), ((), "no_ready_worker")], ids=["full", "empty"]
)
def test_patience_has_an_end(workers: tuple[int, ...], code: str) -> None:
    async def test() -> None:
        placements = queue(pool_of(*workers), seconds=0.05)
        with pytest.raises(ApiError, match=r"within 0\.05 s") as refused:
            await placements.place(placements.ticket())
        assert refused.value.code == code
        assert placements.queued == 0

    run(test)


def test_a_full_queue_refuses_at_once() -> None:
    async def test() -> None:
        placements = queue(pool_of(0), length=2)
        tasks = await waiting(placements, 2)
        with pytest.raises(ApiError, match="2 requests wait"):
            await placements.place(placements.ticket())
        assert placements.queued == 2
        for task in tasks:
            task.cancel()

    run(test)


def test_a_pool_has_admitted_from_the_first_worker_that_takes_sessions_on() -> None:
    pool, seen = Pool(), []
    pool.discovered([address("a")])
    seen.append(pool.has_admitted)
    pool.workers[0].reported(report(0), 0.0)
    pool.changed()
    seen.append(pool.has_admitted)
    pool.discovered([])
    seen.append(pool.has_admitted)
    assert seen == [False, True, True], "once it has, clients are told that nobody is there, not refused"
