from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from decodepool_operator.shell.work_queue import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, SETTLE_SECONDS, WorkQueue

A, B = ("team", "a"), ("team", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(scenario: Callable[[WorkQueue, Clock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = Clock()
        await scenario(WorkQueue(clock), clock)

    asyncio.run(main())


async def is_idle(queue: WorkQueue) -> bool:
    try:
        await asyncio.wait_for(queue.get(), 0.02)
    except TimeoutError:
        return True
    return False


def test_a_burst_of_events_is_one_look() -> None:
    async def scenario(queue: WorkQueue, clock: Clock) -> None:
        for _ in range(50):
            queue.add(A)
        assert await queue.get() == A
        queue.done(A)
        clock.now += 60
        assert await is_idle(queue)

    run(scenario)


def test_a_change_during_a_look_leads_to_another() -> None:
    async def scenario(queue: WorkQueue, clock: Clock) -> None:
        queue.add(A)
        assert await queue.get() == A
        queue.add(A)
        assert await is_idle(queue), "one look at a time"
        queue.done(A)
        clock.now += SETTLE_SECONDS
        assert await queue.get() == A

    run(scenario)


def test_pools_do_not_wait_for_each_other() -> None:
    async def scenario(queue: WorkQueue, clock: Clock) -> None:
        queue.add(A)
        queue.add(B)
        assert {await queue.get(), await queue.get()} == {A, B}

    run(scenario)


def test_a_timer_is_brought_forward_by_an_event_and_never_put_off() -> None:
    async def scenario(queue: WorkQueue, clock: Clock) -> None:
        queue.add(A, 30)
        queue.add(A, 60)
        clock.now += 29
        assert await is_idle(queue)
        queue.add(A)
        assert await queue.get() == A
        queue.done(A)
        clock.now += 60
        assert await is_idle(queue), "the timer was of the look that has been"

    run(scenario)


def test_failures_wait_twice_as_long_each_time_up_to_a_limit() -> None:
    async def scenario(queue: WorkQueue, clock: Clock) -> None:
        waits = []
        for _ in range(12):
            queue.add(A)
            clock.now += LONGEST_RETRY_SECONDS
            await queue.get()
            waits.append(queue.retry(A))
            queue.done(A)
        assert waits[:4] == [FIRST_RETRY_SECONDS * factor for factor in (1, 2, 4, 8)]
        assert waits[-1] == LONGEST_RETRY_SECONDS

    run(scenario)


def test_a_failing_pool_that_is_told_of_again_and_again_does_not_spin() -> None:
    async def scenario(queue: WorkQueue, clock: Clock) -> None:
        looks = 0
        queue.add(A)
        for _ in range(600):  # a minute of an event each tenth of a second
            if await _taken(queue):
                looks += 1
                queue.retry(A)
                queue.done(A)
            queue.add(A)
            clock.now += 0.1
        assert looks <= 8

    run(scenario)


async def _taken(queue: WorkQueue) -> bool:
    if not queue.depth:
        return False
    await queue.get()
    return True


def test_what_its_owner_changed_is_looked_at_at_once_however_often_it_failed() -> None:
    async def scenario(queue: WorkQueue, clock: Clock) -> None:
        for _ in range(8):
            queue.hurry(A)
            await queue.get()
            queue.retry(A)
            queue.done(A)
        queue.hurry(A)
        assert await queue.get() == A

    run(scenario)


def test_a_look_that_does_not_end_is_seen() -> None:
    async def scenario(queue: WorkQueue, clock: Clock) -> None:
        assert queue.longest_run_seconds == 0
        queue.add(A)
        await queue.get()
        clock.now += 17
        assert queue.longest_run_seconds == 17

    run(scenario)


def test_nothing_is_kept_of_a_pool_that_went_during_a_look_at_it() -> None:
    async def scenario(queue: WorkQueue, clock: Clock) -> None:
        queue.add(A)
        await queue.get()
        queue.forget(A)
        queue.done(A)
        kept = [name for name, memory in vars(queue).items() if isinstance(memory, dict | set | list) and memory]
        assert kept == []

    run(scenario)
