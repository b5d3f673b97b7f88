"""The workers of the pool: who is there, who was, and who has most room. Pure: no I/O, one thread."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from decodepool_gateway.workers import Worker, WorkerAddress, told_unmarked

REMEMBERED_WORKERS = 10_000
"""Of workers that are gone, so that their sessions' clients are told so."""


class Pool:
    """Workers by their tags. `on_change` hears of everything that may make room for a session.

    `has_admitted` says whether a worker ever took sessions since this process began.
    """

    def __init__(self, draw: Callable[[Sequence[Worker]], Worker] = random.choice) -> None:
        self._workers: dict[str, Worker] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._draw = draw
        self.on_change: Callable[[], None] = lambda: None
        self.has_admitted = False

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Every worker that discovery knows, in the order of their names."""
        return tuple(sorted(self._workers.values(), key=lambda worker: worker.address.name))

    @property
    def admitting(self) -> tuple[Worker, ...]:
        """Those that take new sessions, be there room or not."""
        return tuple(worker for worker in self._workers.values() if worker.admits)

    @property
    def remedy(self) -> str:
        """What ends a sentence of no worker's taking sessions: what one lacks for that, where it is known."""
        unmarked = next((worker for worker in self.workers if not worker.marks_sessions), None)
        return "" if unmarked is None else f"; {told_unmarked(unmarked.address)}"

    def discovered(self, addresses: Iterable[WorkerAddress]) -> None:
        """Take what discovery knows now: all of it."""
        found = {address.tag: address for address in addresses}
        for tag in self._workers.keys() - found.keys():
            self._forget(tag)
        for tag, address in found.items():
            known = self._workers.get(tag)
            if known is None or known.address.url != address.url:
                self._workers[tag] = Worker(address)
            else:
                known.address = address
        self.changed()

    def changed(self) -> None:
        """Note that something of a worker has changed."""
        self.has_admitted = self.has_admitted or bool(self.admitting)
        self.on_change()

    def find(self, tag: str) -> Worker | None:
        """Return the worker with this tag, if it is there."""
        return self._workers.get(tag)

    def departed(self, tag: str) -> str | None:
        """Return the name of a worker that was there and is gone; None if none is known."""
        return None if tag in self._workers else self._gone.get(tag)

    def roomiest(self) -> Worker | None:
        """Return the worker with most free places, any among equals; None if there is no room."""
        with_room = [(worker.free, worker) for worker in self.admitting]
        most = max((free for free, _ in with_room), default=0)
        return self._draw([worker for free, worker in with_room if free == most]) if most > 0 else None

    def _forget(self, tag: str) -> None:
        self._gone[tag] = self._workers.pop(tag).address.name
        self._gone.move_to_end(tag)
        while len(self._gone) > REMEMBERED_WORKERS:
            self._gone.popitem(last=False)
