"""What is told of a pool: seven conditions, each with one word for programs and one sentence for people.

`Ready` sums up: its reason is that of the first thing in the way. A transition time moves when a status changes, and at
no other time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from decodepool_operator import times
from decodepool_operator.planner.state import Event, Object
from decodepool_operator.texts import make_printable

Truth = Literal["True", "False", "Unknown"]

TYPES = ("Ready", "ModelResolved", "CapacityPlanned", "WorkersAvailable", "WaitingForGPU", "Draining", "Degraded")
GOOD_WHEN_FALSE = frozenset({"WaitingForGPU", "Draining", "Degraded"})


@dataclass(frozen=True)
class Finding:
    """One condition, before it is known since when. Its texts are made one printable line each, whoever wrote them."""

    type: str
    status: Truth
    reason: str
    message: str

    def __post_init__(self) -> None:
        make_printable(self, "reason", "message")


def with_times(findings: Iterable[Finding], before: Object, generation: int, now: datetime) -> list[Object]:
    """Return the status's `conditions`."""
    known = {each.get("type"): each for each in before.get("conditions") or ()}
    return [_condition(each, known.get(each.type), generation, now) for each in findings]


def _condition(finding: Finding, before: Object | None, generation: int, now: datetime) -> Object:
    same = before is not None and before.get("status") == finding.status
    since = before.get("lastTransitionTime") if same and before else None
    return {
        "type": finding.type,
        "status": finding.status,
        "reason": finding.reason,
        "message": finding.message,
        "lastTransitionTime": since or times.written(now),
        "observedGeneration": generation,
    }


def events_of(findings: Iterable[Finding], before: Object) -> tuple[Event, ...]:
    """Return an event for every condition whose status or reason is another than before."""
    known = {each.get("type"): each for each in before.get("conditions") or ()}
    return tuple(
        Event("Normal" if _is_good(each) else "Warning", each.reason, f"{each.type} is {each.status}: {each.message}")
        for each in findings
        if _is_news(each, known.get(each.type))
    )


def _is_good(finding: Finding) -> bool:
    if finding.type == "Draining" or finding.status == "Unknown":
        return True
    return (finding.status == "False") == (finding.type in GOOD_WHEN_FALSE) or finding.reason in PASSING


PASSING = frozenset(
    {
        "Suspended",
        "NoReplicas",
        "Resolving",
        "ModelNotResolved",
        "Planning",
        "NotPlanned",
        "Starting",
        "RollingOut",
        "ScalingDown",
        "GatewayStarting",
    }
)
"""Reasons for being not ready that are on the way to it, or that somebody asked for."""


def _is_news(finding: Finding, before: Object | None) -> bool:
    """A pool's first look, and what is as it should be, is no news; Ready always is."""
    if before is None:
        return not _is_good(finding)
    changed = (before.get("status"), before.get("reason")) != (finding.status, finding.reason)
    return changed and (finding.type == "Ready" or before.get("status") != finding.status or not _is_good(finding))
