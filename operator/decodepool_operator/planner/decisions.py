"""Why a plan does what it does, or holds back: for the operator's log, a line a decision.

A sentence stays the same for as long as the decision does, or it would be told anew at each look. It names what
differs in a pod's template and never how: a variable's value or a URL may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from decodepool_operator import times
from decodepool_operator.names import GATEWAY, WORKER
from decodepool_operator.planner.devices import Refused
from decodepool_operator.planner.differences import agrees, same_stamp
from decodepool_operator.planner.objects.common import TEMPLATE, template_digest
from decodepool_operator.planner.rollout import Failures
from decodepool_operator.planner.situation import Key, Situation
from decodepool_operator.planner.state import Decision, Object
from decodepool_operator.texts import count

MOST_PARTS = 8
"""Parts of a template that a sentence names."""


def decisions(seen: Situation, applied: Iterable[Object]) -> Iterator[Decision]:
    """Yield what was decided at a look. `applied`: the objects that are to be written."""
    written = {(each["kind"], each["metadata"]["name"]): each for each in applied}
    yield from _repaired(seen, written)
    for component, failing in ((WORKER, seen.failing), (GATEWAY, seen.gateways_failing)):
        key = ("Deployment", seen.pool.child(component))
        yield from _failed(failing)
        if key in written:
            yield from _written(seen, component, written[key], seen.live.get(key))
        elif component == WORKER and seen.live_worker is not None and seen.shrinks_to is not None:
            yield _scaled(seen, component, seen.live_worker["spec"].get("replicas"), seen.shrinks_to)
    yield from _held(seen)
    yield from _autoscaled(seen)
    if isinstance(seen.capacity, Refused) and seen.live_worker is not None and not seen.pool.spec.suspend:
        yield Decision("keep", f"{seen.capacity.reason}: what runs keeps its template: {seen.capacity.message}")


def _repaired(seen: Situation, written: Mapping[Key, Object]) -> Iterator[Decision]:
    """Yield what somebody else changed: it was applied as it is to be, and is otherwise."""
    for (kind, name), wanted in written.items():
        live = seen.live.get((kind, name))
        if live is not None and same_stamp(wanted, live):
            yield Decision("repair", f"{kind} {name} was changed by somebody: {', '.join(changed_parts(wanted, live))}")


def _failed(failing: Failures | None) -> Iterator[Decision]:
    if failing is not None and failing.is_news:
        yield Decision("replace", f"{failing.pod}: {failing.reason}: {failing.message}")


def _written(seen: Situation, component: str, wanted: Object, live: Object | None) -> Iterator[Decision]:
    after = wanted["spec"]["replicas"]
    if live is None:
        what = seen.planned.plan.sessions if seen.planned and component == WORKER else None
        yield Decision("create", f"{component}s" + (f" of {count(what, 'session')}" if what else ""), None, after)
        return
    before = live["spec"].get("replicas")
    if template_digest(wanted) != template_digest(live):
        parts = ", ".join(changed_parts(wanted["spec"]["template"], live["spec"]["template"])) or "less than before"
        why = f"generation {seen.pool.generation}" if seen.pool.spec_changed else "not by the spec"
        yield Decision("rollout", f"{component}s: {why}: {parts}")
    if before != after:
        yield _scaled(seen, component, before, after)


def _scaled(seen: Situation, component: str, before: int | None, after: int) -> Decision:
    return Decision("scale", f"{component}s: {_why(seen, component, after)}", before, after)


def _why(seen: Situation, component: str, after: int) -> str:
    failing = seen.failing if component == WORKER else seen.gateways_failing
    if failing is not None and failing.holds(seen.now) and not (component == WORKER and after == seen.wanted):
        return "failures are given time"
    if component == GATEWAY:
        return "as the spec says"
    return "suspend is true" if seen.pool.spec.suspend else f"{seen.wanted} wanted"


def _held(seen: Situation) -> Iterator[Decision]:
    """Yield what keeps the Deployments from being as many pods as are wanted."""
    for failing in (seen.failing, seen.gateways_failing):
        if failing is not None and failing.count > 1 and failing.holds(seen.now):
            yield Decision("hold", f"{failing.told()}: none is made before {times.written(failing.next_try)}")
    if seen.silence is not None:
        yield Decision("hold", "no worker has told how many sessions it holds yet: nothing shrinks before that")
    elif seen.costs:
        yield Decision("hold", "workers are marked by their sessions first, so that the emptiest goes")


def _autoscaled(seen: Situation) -> Iterator[Decision]:
    wish = seen.wish
    if wish.replicas is not None:
        yield Decision("autoscale", (wish.status or {})["message"], seen.pool.spec.replicas, wish.replicas)
    elif wish.why is not None:
        yield Decision("hold", f"autoscaling: {wish.why}")


def changed_parts(wanted: Object, live: Object) -> list[str]:
    """Return the names of what differs between two pod templates or objects, of options too, and no values."""
    found = sorted(set(_differences(wanted, live, "")) - {f"metadata.annotations.{TEMPLATE}"})
    return found if len(found) <= MOST_PARTS else [*found[:MOST_PARTS], "…"]


def _differences(wanted: Any, live: Any, path: str) -> Iterator[str]:
    if agrees(wanted, live, field=path.rpartition(".")[2]):
        return
    if isinstance(wanted, dict) and isinstance(live, dict):
        for key, value in wanted.items():
            yield from _differences(value, live.get(key), f"{path}.{key}" if path else key)
    elif isinstance(wanted, list) and isinstance(live, list):
        yield from _listed(wanted, live, path)
    else:
        yield path


def _listed(wanted: list[Any], live: list[Any], path: str) -> Iterator[str]:
    if all(isinstance(each, dict) and "name" in each for each in wanted):
        there = {each.get("name"): each for each in live if isinstance(each, dict)}
        for each in wanted:
            yield from _differences(each, there.get(each["name"]), f"{path}[{each['name']}]")
    elif options := _changed_options(wanted, live):
        yield from (f"{path} {each}" for each in options)
    else:
        yield path


def _changed_options(wanted: list[Any], live: list[Any]) -> set[str]:
    """Return the names of command line options that differ; none where anything else does."""
    changed = [each for one, other in ((wanted, live), (live, wanted)) for each in one if each not in other]
    are_options = all(isinstance(each, str) and each.startswith("--") for each in changed)
    return {each.partition("=")[0] for each in changed} if are_options else set()
