"""How many pods a Deployment is to have now, and which workers go first where some go.

A Deployment replaces a failed pod at once, and again, and again: a node whose device plugin is broken makes thousands.
The first replacement is its own affair. Where that fails too, the Deployment is held at the pods that were there
before, for a time that doubles. Workers and gateways are counted apart: a node that takes no gateway takes workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from decodepool_operator import times
from decodepool_operator.names import GATEWAY, WORKER
from decodepool_operator.planner.census import DELETION_COST, Census, Member
from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.state import Object
from decodepool_operator.planner.troubles import condition_of

FIRST_GAP_SECONDS = 5
LONGEST_GAP_SECONDS = 300
PLACE_WAIT = timedelta(seconds=30)
"""How long a worker has no place before a rollout stops waiting for it."""

REPORT_WAIT = timedelta(seconds=15)
"""Longer than from one poll of the workers to the next."""

FORGET_SECONDS = 120
"""After the last failure, with every worker ready, until it is forgotten: longer than a pod takes to fail again."""


@dataclass(frozen=True)
class Failures:
    """Failures in a row of a component's pods, and until when no replacement is made. `made`: when the last to fail was
    made, None where it was not seen at this look.
    """

    component: str
    count: int
    pod: str
    reason: str
    message: str
    last: datetime
    next_try: datetime
    made: datetime | None = None

    @property
    def is_news(self) -> bool:
        """Whether the last was seen at this look."""
        return self.made is not None

    @property
    def gap_seconds(self) -> int:
        """The wait after the last failure."""
        return min(LONGEST_GAP_SECONDS, FIRST_GAP_SECONDS << min(self.count - 1, 10))

    def holds(self, now: datetime) -> bool:
        """Whether replacements are held back."""
        return now < self.next_try

    def to_status(self) -> Object:
        """Return what the status remembers."""
        return {
            "count": self.count,
            "pod": self.pod,
            "reason": self.reason,
            "lastTime": times.written(self.last),
            "nextTryTime": times.written(self.next_try),
        }

    def told(self) -> str:
        """Return the sentence for a condition: it stays the same until the next failure."""
        if self.count == 1:
            return f"a {self.component} failed, {self.reason}: it is replaced"
        row = f"{self.count} failures of {self.component}s in a row"
        return f"{row}, the last {self.reason}: each replacement waits longer"


MEMORIES = {WORKER: "failures", GATEWAY: "gatewayFailures"}
"""Where the status remembers each component's."""


def failures(pool: Pool, component: str, pods: Census, now: datetime, *, all_ready: bool) -> Failures | None:
    """Return what is remembered of failures after this look. A changed spec starts anew: it may be the repair."""
    known = None if pool.spec_changed else _remembered(pool, component)
    new = [each for each in pods.failed if known is None or (each.created or now) > known.last]
    if new:
        return _one_more(component, known, max(new, key=lambda each: each.created or now), now)
    if known is None or (all_ready and now >= max(known.last + timedelta(seconds=FORGET_SECONDS), known.next_try)):
        return None
    return known


def held_replicas(wanted: int, there: int, pods: Census, failing: Failures | None, now: datetime) -> int:
    """Return the Deployment's replicas: those that are wanted; while failures are given time, no more than there are.

    Whoever looks at a failed pod finds its replacement made already. If not for the first time, that one goes again.
    """
    if failing is None or not failing.holds(now):
        return wanted
    held = min(wanted, there)
    if failing.made is None or failing.count == 1:
        return held
    made = failing.made
    return min(held, sum(each.ready or (each.created or now) < made for each in pods.alive))


def deletion_costs(workers: Census, live_replicas: int, replicas: int) -> list[Marks]:
    """Return the annotations, as far as they are missing, that make the emptiest worker go first, where some are to go.
    One that is not ready goes before any other anyhow; one that does not answer counts as full.
    """
    if replicas >= min(live_replicas, len(workers.alive)) or not replicas:
        return []
    costs = {each.name: str(_cost(each)) for each in workers.ready}
    known = {each.name: each.deletion_cost for each in workers.ready}
    return [(name, {DELETION_COST: cost}) for name, cost in costs.items() if known[name] != cost]


def unmarked(costs: list[Marks], faults: tuple[str, ...]) -> bool:
    """Say whether to wait until every mark is there. Whoever refuses to have a pod marked keeps nothing from shrinking,
    and no other refusal bears on it.
    """
    return any(not any(fault.startswith(f"Pod {name}: ") for fault in faults) for name, _ in costs)


def reports_due(pool: Pool, workers: Census, now: datetime) -> datetime | None:
    """Return until when to wait for somebody's report before anything shrinks; None where there is nothing to wait for.

    An operator that has just begun knows of no session at all. It waits for as long as it may take to ask, counted from
    when the pool ceased to be ready: a worker that never answers keeps nobody waiting.
    """
    if not workers.ready or any(each.report for each in workers.ready):
        return None
    told = condition_of({"status": pool.status}, "Ready")
    since = times.read(told.get("lastTransitionTime")) if told.get("status") == "False" else None
    due = (since or now) + REPORT_WAIT
    return due if due > now else None


Marks = tuple[str, Mapping[str, str]]
"""A pod's name, and annotations for it."""


def unavailable_workers(workers: Census, now: datetime) -> int:
    """Return how many workers may be missing during a rollout: one, and those that have no place at all.

    A pool with more workers than there are GPUs has some that wait for ever. Counted as missing, they would keep every
    old worker from being replaced: the rollout that repairs a pool would never end. One that is merely about to get a
    place does not count: none while a worker drains or starts, and none before it has waited for a while.
    """
    busy = workers.draining or any(each.trouble is None and not each.ready for each in workers.alive)
    if busy or len(workers.current) == len(workers.alive):
        return 1
    return 1 + len([each for each in workers.alive if each.waits_since and now - each.waits_since >= PLACE_WAIT])


UNKNOWN_COST = 1_000_000


def _cost(member: Member) -> int:
    return UNKNOWN_COST if member.report is None else member.report.sessions_active


def _one_more(component: str, known: Failures | None, failed: Member, now: datetime) -> Failures:
    trouble = failed.trouble
    reason = trouble.reason if trouble else "Failed"
    message = trouble.message if trouble else "the pod failed"
    count = known.count + 1 if known else 1
    once_more = Failures(component, count, failed.name, reason, message, last=now, next_try=now)
    gap = timedelta(seconds=once_more.gap_seconds)
    return replace(once_more, next_try=now + gap, made=failed.created or now)


def _remembered(pool: Pool, component: str) -> Failures | None:
    kept = pool.status.get(MEMORIES[component]) or {}
    last, next_try = times.read(kept.get("lastTime")), times.read(kept.get("nextTryTime"))
    if last is None or next_try is None or not isinstance(kept.get("count"), int):
        return None
    return Failures(component, kept["count"], str(kept.get("pod")), str(kept.get("reason")), "", last, next_try)
