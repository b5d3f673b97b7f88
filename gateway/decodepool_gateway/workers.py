"""One worker of the pool, as discovery tells of it, and what the gateway knows beyond that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from decodepool_sizing.session_ids import worker_tag

SETTLED_SECONDS = 0.25
"""By then a worker has counted a session that it was sent, be its answer far off."""

MOST_MISSED = 2
"""Reports in a row that may be missing before a worker gets no more sessions."""


@dataclass(frozen=True)
class WorkerAddress:
    """Who a worker is and where it is reached. `ready` ones take new sessions; `draining` ones end soon."""

    uid: str
    name: str
    url: str
    ready: bool
    draining: bool = False

    @cached_property
    def tag(self) -> str:
        """The mark in its sessions' ids."""
        return worker_tag(self.uid)


def told_unmarked(address: WorkerAddress) -> str:
    """Say why a worker whose sessions would never be found gets none, and the way out."""
    way_out = f"start it with --worker-tag-of {address.uid}"
    return f"worker {address.name} does not mark its sessions for this name and gets none: {way_out}"


@dataclass
class Change:
    """A place taken (-1) or come free (1), and from when on the worker's reports count it."""

    by: int
    counted_at: float

    def settle(self, now: float) -> None:
        """Note that the worker has answered: its reports count it from now on."""
        self.counted_at = min(self.counted_at, now)


@dataclass
class Worker:
    """A worker's address, its last answer to `/v1/capacity`, and the places given and got back since then.

    The estimate of its free places may be off by a few for a second: the worker itself has the last word.
    """

    address: WorkerAddress
    report: Mapping[str, Any] | None = None
    reachable: bool = True
    _missed: int = 0
    _changes: list[Change] = field(default_factory=list)

    @property
    def admits(self) -> bool:
        """Whether it takes new sessions, if it has room."""
        ready = self.address.ready and not self.address.draining and self.reachable
        return ready and self.report is not None and self.marks_sessions

    @property
    def marks_sessions(self) -> bool:
        """Whether its sessions' ids lead back to it, as far as is known: a worker of before says nothing of its tag."""
        tag = self.address.tag
        return self.report is None or self.report.get("worker_tag", tag) == tag

    @property
    def state(self) -> str:
        """One word for it: ready, draining, unready, unreachable."""
        if self.address.draining:
            return "draining"
        if not self.reachable:
            return "unreachable"
        return "ready" if self.admits else "unready"

    @property
    def capacity(self) -> int:
        """Places that it has."""
        return 0 if self.report is None else int(self.report["sessions"]["capacity"])

    @property
    def free(self) -> int:
        """Places that are probably free."""
        if self.report is None:
            return 0
        changed = sum(change.by for change in self._changes)
        return max(0, min(self.capacity, int(self.report["sessions"]["free"]) + changed))

    @property
    def active(self) -> int:
        """Sessions that it probably holds."""
        if self.report is None:
            return 0
        return self.capacity - self.free if self.admits else int(self.report["sessions"]["active"])

    def reported(self, report: Mapping[str, Any], asked_at: float) -> None:
        """Take an answer to `/v1/capacity` that was asked for at `asked_at`."""
        self.report, self.reachable, self._missed = report, True, 0
        self._changes = [change for change in self._changes if change.counted_at > asked_at]

    def missed(self) -> None:
        """Note that it has not answered when asked for its capacity. Once may be a busy moment."""
        self._missed += 1
        self.reachable = self.reachable and self._missed < MOST_MISSED

    def take(self, now: float) -> Change:
        """Count a place that is about to be taken."""
        return self._changed(Change(-1, now + SETTLED_SECONDS))

    def give(self, now: float) -> None:
        """Count a place that came free."""
        self._changed(Change(1, now))

    def full(self) -> None:
        """Believe its refusal: it has no room, until it says otherwise."""
        if self.report is not None:
            self.report = {**self.report, "sessions": {**self.report["sessions"], "free": 0}}
        self._changes.clear()

    def _changed(self, change: Change) -> Change:
        self._changes.append(change)
        return change
