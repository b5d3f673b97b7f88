"""Places for new sessions: given at once where there is room, else in the order of asking, for a bounded time.

A place is the gateway's guess. A worker that refuses it sends the request back to its old position in the queue.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import insort
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from decodepool_sizing.api_errors import ApiError

from decodepool_gateway.pool import Pool
from decodepool_gateway.workers import Change, Worker

Clock = Callable[[], float]


@dataclass(frozen=True)
class QueueLimits:
    """How many requests may wait for a place, and for how long."""

    length: int = 256
    seconds: float = 10.0


@dataclass(frozen=True)
class Place:
    """A place on a worker, counted as taken."""

    worker: Worker
    taken: Change


@dataclass(order=True)
class Ticket:
    """A request's position in the queue, by the order in which requests came, and when its patience ends."""

    number: int
    deadline: float = field(compare=False)
    tries: int = field(default=0, compare=False)
    place: asyncio.Future[Place] | None = field(default=None, compare=False)


class Placements:
    """Who gets the next free place."""

    def __init__(self, pool: Pool, limits: QueueLimits, clock: Clock) -> None:
        self.pool = pool
        self.limits = limits
        self._clock = clock
        self._numbers = itertools.count()
        self._waiting: list[Ticket] = []
        pool.on_change = self._serve

    @property
    def queued(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    def ticket(self) -> Ticket:
        """Join the line."""
        return Ticket(next(self._numbers), self._clock() + self.limits.seconds)

    async def place(self, ticket: Ticket) -> Place:
        """Return a place, at once or after a while.

        Raises `ApiError`: `no_free_session` if there is none in time or too many wait already, `no_ready_worker` if
        there is not even a worker that takes sessions.
        """
        ticket.tries += 1
        if not self._waiting and (worker := self.pool.roomiest()):
            return self._taken(worker)
        if ticket.tries == 1 and len(self._waiting) >= self.limits.length:
            raise self._refusal(f"{len(self._waiting)} requests wait for a place already")
        return await self._wait(ticket)

    def answered(self, place: Place) -> None:
        """Note that the worker has answered, whatever it said."""
        place.taken.settle(self._clock())

    def unreachable(self, worker: Worker) -> None:
        """Leave a worker out until it has reported again."""
        worker.reachable = False

    def released(self, worker: Worker) -> None:
        """Note that a place came free."""
        worker.give(self._clock())
        self._serve()

    async def _wait(self, ticket: Ticket) -> Place:
        ticket.place = asyncio.get_running_loop().create_future()
        insort(self._waiting, ticket)
        try:
            async with asyncio.timeout_at(ticket.deadline):
                return await ticket.place
        except TimeoutError:
            if ticket.place.done() and not ticket.place.cancelled():  # it came in the very last moment
                return ticket.place.result()
            raise self._refusal(f"no place came free within {self.limits.seconds:g} s") from None
        except asyncio.CancelledError:
            if ticket.place.done() and not ticket.place.cancelled():  # as above, but its client has left
                self.released(ticket.place.result().worker)
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(ticket)

    def _serve(self) -> None:
        """Give free places to those who wait, first come first served."""
        while self._waiting and (worker := self.pool.roomiest()):
            ticket = self._waiting.pop(0)
            if ticket.place is not None and not ticket.place.done():
                ticket.place.set_result(self._taken(worker))

    def _taken(self, worker: Worker) -> Place:
        return Place(worker, worker.take(self._clock()))

    def _refusal(self, why: str) -> ApiError:
        if not self.pool.admitting:
            return ApiError("no_ready_worker", f"no worker of the pool takes sessions now: {why}{self.pool.remedy}")
        capacity = sum(worker.capacity for worker in self.pool.admitting)
        return ApiError("no_free_session", f"all {capacity} places of the pool are taken: {why}")
