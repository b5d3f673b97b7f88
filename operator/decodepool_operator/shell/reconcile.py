"""The one path that every event, timer and retry takes: observe, plan, carry out."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import TypeVar

from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import POOLS, kind_of
from decodepool_operator.names import PoolKey
from decodepool_operator.planner.plan import untouched
from decodepool_operator.planner.state import Decision, Object, Observed, Plan
from decodepool_operator.shell.carry_out import Carrier, Outcome, PoolChangedError
from decodepool_operator.shell.events import Recorder
from decodepool_operator.shell.metrics import Metrics
from decodepool_operator.shell.observe import World
from decodepool_operator.shell.work_queue import WorkQueue
from decodepool_operator.texts import steady

T = TypeVar("T")
Planner = Callable[[Object, Observed, datetime], Plan]

FIRST_ROUND_SECONDS = 0.1
LONGEST_SETTLING_SECONDS = 60.0
"""Between looks that nothing but the pool's own last write calls for."""
LONGEST_CONTEST_SECONDS = 5.0
"""Between looks at a pool whose status somebody else writes too, again and again."""
PLANNER_FAILED_SECONDS = 60.0
"""Between looks at a pool that broke the planner, where nothing happens meanwhile."""
UNSETTLED_ROUNDS = 10
"""Writes in a row, with nothing else happening, that are worth a warning: a plan that its result does not satisfy."""

log = logging.getLogger(__name__)


class Result(StrEnum):
    """What came of a look at a pool."""

    GONE = "gone"
    QUIET = "quiet"
    WRITTEN = "written"
    REFUSED = "refused"
    STALE = "stale"
    TERMINATING = "terminating"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"


@dataclass(frozen=True)
class Writers:
    """What writes to the API server."""

    carrier: Carrier
    recorder: Recorder


@dataclass
class Rounds:
    """Looks at a pool that wrote, in a row: `own`, with no news between; `repeats`, that wrote the same once more.
    `decided`: what the last look decided.
    """

    own: int = 0
    repeats: int = 0
    written: str = ""
    decided: tuple[Decision, ...] = ()

    def begin(self, *, had_news: bool) -> None:
        """Begin a look."""
        self.own = 0 if had_news else self.own

    def news(self, plan: Plan) -> list[Decision]:
        """Take a plan's decisions; return those that the plan before it did not have."""
        new = [each for each in plan.decisions if each not in self.decided]
        self.decided = plan.decisions
        return new

    def wrote(self, plan: Plan) -> None:
        """Note what a look wrote."""
        status = plan.status if plan.writes_status else None
        written = json.dumps(
            [plan.annotate, plan.shrink, plan.apply, plan.replicas, status], sort_keys=True, default=str
        )
        self.own += 1
        self.repeats = self.repeats + 1 if written == self.written else 0
        self.written = written


class Reconciler:
    """Takes keys from the queue, one task a pool at a time."""

    def __init__(
        self,
        world: World,
        queue: WorkQueue,
        planner: Planner,
        writers: Writers,
        *,
        metrics: Metrics,
        threads: Executor,
    ) -> None:
        self._world = world
        self._queue = queue
        self._plan = planner
        self._carrier = writers.carrier
        self._recorder = writers.recorder
        self._metrics = metrics
        self._threads = threads
        self._rounds: dict[PoolKey, Rounds] = {}

    async def run(self) -> None:
        """Look at one pool after another, for ever. Several of these may run at once."""
        while True:
            key = await self._queue.get()
            try:
                await self.look(key)
            finally:
                self._queue.done(key)

    async def look(self, key: PoolKey) -> Result:
        """Look at a pool once, and see to it that it is looked at again when that is due."""
        begin = time.monotonic()
        rounds = self._rounds.setdefault(key, Rounds())
        rounds.begin(had_news=self._queue.had_news(key))
        try:
            result, again = await self._look(key)
        except ApiFault as fault:
            log.warning("a look at a pool was cut short", extra={"fields": {**_fields(key), "fault": fault.message}})
            self._metrics.errors.labels("reconcile", fault.refusal.value).inc()
            result = Result.UNAVAILABLE if fault.refusal is Refusal.UNAVAILABLE else Result.FAILED
            again = None
        except Exception:
            log.exception("a look at a pool failed", extra={"fields": _fields(key)})
            self._metrics.errors.labels("reconcile", "Unexpected").inc()
            result, again = Result.FAILED, None
        self._metrics.reconcile_seconds.observe(time.monotonic() - begin)
        self._metrics.reconciles.labels(result.value).inc()
        self._reschedule(key, result, again)
        return result

    async def _look(self, key: PoolKey) -> tuple[Result, float | None]:
        pool = self._world.store.pool(key)
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            return Result.GONE, None
        await self._look_at_strangers(key)
        plan = self._planned(key, pool)
        outcome = await self._carry_out(key, pool, plan)
        if outcome.terminating:
            return Result.TERMINATING, None
        took_faults = self._took_faults(key, outcome)
        if outcome.change is not None:
            return await self._changed(key, pool, plan, outcome), plan.look_again_seconds
        if took_faults:
            pool = self._world.store.pool(key) or pool
            plan = self._planned(key, pool)
        written = await self._write_status(pool, plan)
        await self._tell(pool, plan)
        return self._came_to(key, plan, outcome, written), plan.look_again_seconds

    def _came_to(self, key: PoolKey, plan: Plan, outcome: Outcome, written: Result) -> Result:
        if outcome.unavailable:
            return Result.UNAVAILABLE
        if written is Result.STALE:
            return Result.STALE
        if outcome.faults or outcome.foreign:
            return Result.REFUSED
        if plan.is_quiet:
            return Result.QUIET
        self._rounds[key].wrote(plan)
        return Result.WRITTEN

    async def _changed(self, key: PoolKey, pool: Object, plan: Plan, outcome: Outcome) -> Result:
        """End a look in which the pool became another: what was to be its status speaks of a spec of before."""
        assert outcome.change is not None  # its caller has looked
        self._take(pool, outcome.change.found)
        if not outcome.scaled:
            return Result.STALE
        await self._tell(pool, plan)
        self._rounds[key].wrote(plan)
        return Result.WRITTEN

    def _planned(self, key: PoolKey, pool: Object) -> Plan:
        """Plan. A pool that breaks the planner says so itself: else an edit would leave it Ready under its old spec."""
        observed, now = self._world.observe(key, pool), datetime.now(UTC)
        plan = self._plan_or_say(key, pool, observed, now)
        for each in self._rounds[key].news(plan):
            log.info("decided", extra={"fields": {**_fields(key), **_decision(each)}})
        return plan

    def _plan_or_say(self, key: PoolKey, pool: Object, observed: Observed, now: datetime) -> Plan:
        try:
            return self._plan(pool, observed, now)
        except Exception as error:
            log.exception("a pool broke the planner", extra={"fields": _fields(key)})
            self._metrics.errors.labels("plan", "Unexpected").inc()
            message = steady(f"a fault of this operator, whose log has more: {type(error).__name__}: {error}", key[1])
            return replace(untouched(pool, "PlannerFailed", message, now), look_again_seconds=PLANNER_FAILED_SECONDS)

    async def _carry_out(self, key: PoolKey, pool: Object, plan: Plan) -> Outcome:
        if not plan.changes_more_than_status:
            return Outcome()
        known = {(kind_of(child), child["metadata"]["name"]): child for child in self._world.store.children(key)}
        outcome = await self._in_thread(partial(self._carrier.carry_out, pool, plan, known))
        log.info("carried out a plan", extra={"fields": {**_fields(key), **_deeds(plan, outcome)}})
        for body in outcome.written:
            self._world.store.put(kind_of(body), body)
        for body in outcome.foreign:
            self._world.store.claim(key, kind_of(body), body)
        return outcome

    async def _look_at_strangers(self, key: PoolKey) -> None:
        """Look again at what bears a child's name: no watch tells of it, since it has not this operator's labels."""
        for body in self._world.store.children(key):
            if not self._world.is_watched(body):
                kind, name = kind_of(body), body["metadata"]["name"]
                found = await self._in_thread(partial(self._carrier.find, kind, key[0], name))
                if found is None:
                    self._world.store.remove(kind, body)
                else:
                    self._world.store.claim(key, kind, found)

    def _took_faults(self, key: PoolKey, outcome: Outcome) -> bool:
        """Remember what was refused; return whether that changes what the status has to say."""
        faults = tuple(dict.fromkeys(outcome.faults))
        changed = faults != self._world.faults.get(key, ())
        if changed:
            self._world.faults[key] = faults
            for fault in faults:
                log.warning("the API refused a part of a plan", extra={"fields": {**_fields(key), "fault": fault}})
        return changed or bool(outcome.foreign)

    async def _write_status(self, pool: Object, plan: Plan) -> Result:
        if not plan.writes_status:
            return Result.QUIET
        try:
            written = await self._in_thread(partial(self._carrier.write_status, pool, plan.status))
        except PoolChangedError as change:
            self._take(pool, change.found)
            return Result.STALE
        self._world.store.put(POOLS, written)
        return Result.WRITTEN

    def _take(self, pool: Object, found: Object | None) -> None:
        """Take it that a pool changed, which its watch may be long in telling: the next look is right at once."""
        if found is None:
            self._world.store.remove(POOLS, pool)
        else:
            self._world.store.put(POOLS, found)

    async def _tell(self, pool: Object, plan: Plan) -> None:
        for event in plan.events:
            try:
                await self._in_thread(partial(self._recorder.record, pool, event))
            except ApiFault as fault:
                if fault.refusal is not Refusal.TERMINATING:
                    self._metrics.errors.labels("events", fault.refusal.value).inc()

    def _reschedule(self, key: PoolKey, result: Result, again: float | None) -> None:
        match result:
            case Result.GONE:
                self._forget(key)
            case Result.WRITTEN:
                self._settle(key, self._rounds[key])
            case Result.QUIET | Result.TERMINATING:
                self._queue.succeeded(key)
            case Result.STALE:
                self._queue.again(key, 0.0)
            case _:
                self._queue.retry(key)
        if again is not None and result is not Result.GONE:
            self._queue.again(key, again)

    def _settle(self, key: PoolKey, rounds: Rounds) -> None:
        """Look at what was written: the sooner, the less it was only this operator's own doing."""
        self._queue.succeeded(key)
        if rounds.repeats:
            self._queue.settle(key, min(FIRST_ROUND_SECONDS * 2.0**rounds.repeats, LONGEST_CONTEST_SECONDS))
        self._queue.again(key, min(FIRST_ROUND_SECONDS * 2.0**rounds.own, LONGEST_SETTLING_SECONDS))
        if UNSETTLED_ROUNDS in (rounds.own, rounds.repeats):
            log.warning("a plan does not settle", extra={"fields": _fields(key)})

    def _forget(self, key: PoolKey) -> None:
        self._rounds.pop(key, None)
        if self._world.store.pool(key) is None:
            self._world.forget(key)
            self._queue.forget(key)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _deeds(plan: Plan, outcome: Outcome) -> dict[str, object]:
    """Return what a log has to say of a plan: what was written by kind and name, and what was to be deleted."""
    deeds: dict[str, object] = {
        "written": [f"{body['kind']} {body['metadata']['name']}" for body in outcome.written],
        "deleted": [f"{reference.kind} {reference.name}" for reference in plan.delete],
        "replicas": plan.replicas,
    }
    return {name: deed for name, deed in deeds.items() if deed not in ([], None)}


def _decision(decision: Decision) -> dict[str, object]:
    told = {"decision": decision.what, "why": decision.why, "from": decision.before, "to": decision.after}
    return {name: value for name, value in told.items() if value is not None}


def _fields(key: PoolKey) -> dict[str, str]:
    return {"namespace": key[0], "pool": key[1]}
