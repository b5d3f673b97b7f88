"""Doing what a plan says: annotate, shrink, apply, delete, scale, in that order, then the status.

Two rules for objects that are not this operator's alone:
- An object that exists without belonging to the pool is never taken over. The planner is shown it and says so.
- A field that another manager holds is taken back, since a pool's children are its own; but whoever writes it again and
  again is not fought. After `FORCES` times within `FORCE_WINDOW_SECONDS` the object is left as it is and told of,
  until the pool's own spec changes.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from decodepool_operator.api.client import Api
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import POD_MONITORS, PODS, POOLS, Kind, kind_of
from decodepool_operator.names import MANAGER, is_owned
from decodepool_operator.planner.differences import APPLIED
from decodepool_operator.planner.state import Object, Plan, Reference
from decodepool_operator.shell.metrics import Metrics

FORCES = 3
FORCE_WINDOW_SECONDS = 3600.0
STATUS_TRIES = 3
HELD_BY_US = f'conflict with "{MANAGER}"'


@dataclass
class Outcome:
    """What came of carrying out a plan. `faults`: one stable line for each thing that was refused. `scaled`: the pool's
    replicas were written. `change`: the pool is another now, by that or by somebody else.
    """

    written: list[Object] = field(default_factory=list)
    foreign: list[Object] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    terminating: bool = False
    unavailable: bool = False
    scaled: bool = False
    change: PoolChangedError | None = None


class PoolChangedError(Exception):
    """The pool is another than the one that was looked at. `found` is what it is now, None where it is gone."""

    def __init__(self, found: Object | None) -> None:
        super().__init__("the pool changed meanwhile")
        self.found = found


class Forces:
    """How often each object's fields were taken back from somebody else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[tuple[Kind, str, str], deque[float]] = defaultdict(lambda: deque(maxlen=FORCES))
        self._generations: dict[tuple[Kind, str, str], int] = {}

    def may_force(self, kind: Kind, namespace: str, name: str, generation: int) -> bool:
        """Whether fields may be taken once more; counts it if so. A new generation of the pool is a new wish."""
        now = self._clock()
        self._trim(now)
        times = self._times[kind, namespace, name]
        if self._generations.get((kind, namespace, name)) != generation:
            times.clear()
            self._generations[kind, namespace, name] = generation
        if len(times) == FORCES and now - times[0] < FORCE_WINDOW_SECONDS:
            return False
        times.append(now)
        return True

    def _trim(self, now: float) -> None:
        """Forget whom nobody has contested for so long that it bears on nothing any more."""
        for key in [key for key, times in self._times.items() if now - times[-1] >= FORCE_WINDOW_SECONDS]:
            del self._times[key], self._generations[key]


class Carrier:
    """Writes to the API server. Its methods block; each runs in a thread, one at a time a pool."""

    def __init__(self, api: Api, metrics: Metrics, forces: Forces | None = None) -> None:
        self._api = api
        self._metrics = metrics
        self._forces = forces or Forces()

    def carry_out(self, pool: Object, plan: Plan, known: Mapping[tuple[Kind, str], Object]) -> Outcome:
        """Do all of a plan but its status. `known`: the children that were observed, by kind and name."""
        outcome = Outcome()
        steps: list[Callable[[], None]] = [
            *(partial(self._annotate, pool, name, annotations, outcome) for name, annotations in plan.annotate),
            *([partial(self._shrink, pool, *plan.shrink, outcome)] if plan.shrink is not None else []),
            *(partial(self._apply, pool, body, known, outcome) for body in plan.apply),
            *(partial(self._delete, pool, reference) for reference in plan.delete),
        ]
        if plan.replicas is not None:
            steps.append(partial(self._scale, pool, plan.replicas, outcome))
        for step in steps:
            if outcome.terminating or outcome.unavailable:
                break
            self._try(step, outcome)
        return outcome

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return an object as the API server has it in memory, or None where there is none."""
        return self._found(kind, namespace, name, cached=True)

    def _found(self, kind: Kind, namespace: str, name: str, *, cached: bool) -> Object | None:
        try:
            return self._api.get(kind, namespace, name, cached=cached)
        except ApiFault as fault:
            if fault.refusal is Refusal.NOT_FOUND:
                return None
            raise

    def write_status(self, pool: Object, status: Object) -> Object:
        """Replace a pool's status; return the pool. Labels and the like that changed meanwhile are no reason to wait.

        PoolChangedError where the spec changed meanwhile, or somebody writes all the time, and where it is gone.
        """
        namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
        self._count("status", POOLS)
        for _ in range(STATUS_TRIES):
            try:
                return self._api.replace(POOLS, namespace, name, {**pool, "status": status}, "status")
            except ApiFault as fault:
                if fault.refusal is Refusal.NOT_FOUND:
                    raise PoolChangedError(None) from None
                if fault.refusal is not Refusal.STALE:
                    raise
            known, found = pool, self._found(POOLS, namespace, name, cached=False)
            if found is None or _is_another(known, found):
                raise PoolChangedError(found)
            pool = found
        raise PoolChangedError(pool)

    def _try(self, step: Callable[[], None], outcome: Outcome) -> None:
        try:
            step()
        except ApiFault as fault:
            if fault.refusal is Refusal.TERMINATING:  # the end of a namespace is nobody's error
                outcome.terminating = True
                return
            self._metrics.errors.labels("carry_out", fault.refusal.value).inc()
            outcome.unavailable |= fault.refusal is Refusal.UNAVAILABLE
            outcome.faults.append(fault.message)

    def _annotate(self, pool: Object, name: str, annotations: Mapping[str, str], outcome: Outcome) -> None:
        patch: Object = {"metadata": {"annotations": dict(annotations)}}
        self._count("annotate", PODS)
        try:
            outcome.written.append(self._api.merge(PODS, pool["metadata"]["namespace"], name, patch))
        except ApiFault as fault:
            if fault.refusal is not Refusal.NOT_FOUND:
                raise _named(fault, PODS, name) from None

    def _shrink(self, pool: Object, reference: Reference, replicas: int, outcome: Outcome) -> None:
        """Give a Deployment its size and leave its template: it is then no longer what was applied, and says so."""
        kind = kind_of({"apiVersion": reference.api_version, "kind": reference.kind})
        namespace = pool["metadata"]["namespace"]
        if not self._forces.may_force(kind, namespace, reference.name, pool["metadata"].get("generation", 0)):
            contested = ApiFault(Refusal.FIELD_CONFLICT, "spec.replicas: somebody writes it again and again")
            raise _named(contested, kind, reference.name)
        self._count("shrink", kind)
        patch = {"metadata": {"uid": reference.uid, "annotations": {APPLIED: None}}, "spec": {"replicas": replicas}}
        try:
            outcome.written.append(self._api.merge(kind, namespace, reference.name, patch))
        except ApiFault as fault:
            is_another = "metadata.uid" in fault.message  # so it says with 422, where a deletion says 409
            if not is_another and fault.refusal not in (Refusal.NOT_FOUND, Refusal.STALE):
                raise _named(fault, kind, reference.name) from None

    def _apply(self, pool: Object, body: Object, known: Mapping[tuple[Kind, str], Object], outcome: Outcome) -> None:
        kind, name = kind_of(body), body["metadata"]["name"]
        try:
            if (kind, name) in known or not self._is_strangers(pool, kind, name, outcome):
                self._apply_or_force(pool, body, kind, outcome)
        except ApiFault as fault:
            if kind is POD_MONITORS and fault.refusal is Refusal.NOT_FOUND:
                return  # the CRD went away since it was looked for
            raise _named(fault, kind, name) from None

    def _apply_or_force(self, pool: Object, body: Object, kind: Kind, outcome: Outcome) -> None:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        self._count("apply", kind)
        try:
            outcome.written.append(self._api.apply(body))
            return
        except ApiFault as fault:
            if fault.refusal is not Refusal.FIELD_CONFLICT:
                raise
            if self._is_strangers(pool, kind, name, outcome):
                return
            ours = bool(fault.fields) and all(HELD_BY_US in each for each in fault.fields)  # a size, by `_shrink`
            if not ours and not self._forces.may_force(kind, namespace, name, pool["metadata"].get("generation", 0)):
                raise
        self._count("force", kind)
        outcome.written.append(self._api.apply(body, force=True))

    def _is_strangers(self, pool: Object, kind: Kind, name: str, outcome: Outcome) -> bool:
        """Whether a child's name is somebody else's now, who is then told of. A label is no proof, the owner reference
        is; and what the API server has in memory may be older than the stranger.
        """
        found = self._found(kind, pool["metadata"]["namespace"], name, cached=False)
        if found is None or is_owned(found, pool["metadata"]["uid"]):
            return False
        outcome.foreign.append(found)
        return True

    def _delete(self, pool: Object, reference: Reference) -> None:
        kind = kind_of({"apiVersion": reference.api_version, "kind": reference.kind})
        self._count("delete", kind)
        try:
            self._api.delete(kind, pool["metadata"]["namespace"], reference.name, reference.uid)
        except ApiFault as fault:
            raise _named(fault, kind, reference.name) from None

    def _scale(self, pool: Object, replicas: int, outcome: Outcome) -> None:
        """Scale the pool that was looked at, and look at it again. One that somebody changed meanwhile, be it its
        replicas, is left as it is.
        """
        self._count("scale", POOLS)
        metadata = pool["metadata"]
        patch: Object = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "spec": {"replicas": replicas},
        }
        try:
            self._api.merge(POOLS, metadata["namespace"], metadata["name"], patch, "scale")
            outcome.scaled = True
        except ApiFault as fault:
            if fault.refusal not in (Refusal.NOT_FOUND, Refusal.STALE):
                raise _named(fault, POOLS, metadata["name"]) from None
        outcome.change = PoolChangedError(self._found(POOLS, metadata["namespace"], metadata["name"], cached=False))

    def _count(self, verb: str, kind: Kind) -> None:
        self._metrics.writes.labels(verb, kind.name).inc()


def _is_another(known: Object, found: Object) -> bool:
    return any(known["metadata"].get(key) != found["metadata"].get(key) for key in ("uid", "generation"))


def _named(fault: ApiFault, kind: Kind, name: str) -> ApiFault:
    """Return a fault that says which object it is about."""
    text = "; ".join(fault.fields) if fault.fields else fault.message
    return ApiFault(fault.refusal, f"{kind.name} {name}: {fault.refusal}: {text}", fields=fault.fields)
