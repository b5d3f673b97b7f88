"""What is known of a pool's pods by asking them: the last answers, and for how long they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from decodepool_operator.planner.state import Object, WorkerReport
from decodepool_operator.shell.answers import settled

FORGIVEN_MISSES = 2
"""Polls that may go unanswered before what a pod said last is dropped: a busy second is not a lost worker."""


@dataclass(frozen=True)
class Picture:
    """What is known of a pool's pods: workers' `reports` by pod name; by uid, how many wait at each gateway (None: it
    has not told), and how often in a row each pod was asked in vain.
    """

    reports: dict[str, WorkerReport] = field(default_factory=dict)
    queues: dict[str, int | None] = field(default_factory=dict)
    misses: dict[str, int] = field(default_factory=dict)

    @property
    def queued(self) -> int | None:
        """Sessions that wait: None where any gateway has not told, for they may all wait there."""
        told = [count for count in self.queues.values() if count is not None]
        return sum(told) if told and len(told) == len(self.queues) else None

    def says_the_same(self, other: Picture) -> bool:
        """Whether nobody who looks sees a difference."""
        return (self.reports, self.queued) == (other.reports, other.queued)


def next_picture(
    before: Picture,
    reports: Iterable[tuple[Object, WorkerReport | None]],
    queues: Iterable[tuple[Object, int | None]],
) -> Picture:
    """Return the picture after a poll: each pod that was asked, with its answer, None where it gave none."""
    silent = [_uid(pod) for pod, answer in (*reports, *queues) if answer is None]
    misses = {uid: before.misses.get(uid, 0) + 1 for uid in silent}
    return Picture(dict(_reports(before, misses, reports)), dict(_queues(before, misses, queues)), misses)


def _reports(
    before: Picture, misses: Mapping[str, int], answers: Iterable[tuple[Object, WorkerReport | None]]
) -> Iterator[tuple[str, WorkerReport]]:
    """Yield the reports that hold, by pod name: what a pod just said, or said last."""
    for pod, answer in answers:
        name = pod["metadata"]["name"]
        known = before.reports.get(name)
        if answer is not None:
            yield name, settled(known, answer)
        elif known is not None and known.uid == _uid(pod) and misses[_uid(pod)] <= FORGIVEN_MISSES:
            yield name, known


def _queues(
    before: Picture, misses: Mapping[str, int], answers: Iterable[tuple[Object, int | None]]
) -> Iterator[tuple[str, int | None]]:
    """Yield how many wait at each gateway, by uid. One that ends and is silent has nobody waiting any more."""
    for pod, answer in answers:
        uid = _uid(pod)
        known = before.queues.get(uid) if answer is None and misses[uid] <= FORGIVEN_MISSES else answer
        if known is not None or not is_ending(pod):
            yield uid, known


def is_ending(pod: Object) -> bool:
    """Say whether a pod was told to end."""
    return "deletionTimestamp" in pod["metadata"]


def _uid(pod: Object) -> str:
    uid: str = pod["metadata"]["uid"]
    return uid
