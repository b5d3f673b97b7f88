"""Events on a pool, folded: what repeats is one Event with a count, over restarts of the operator too."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from decodepool_operator.api.client import Api
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import EVENTS
from decodepool_operator.names import MANAGER
from decodepool_operator.planner.state import Event, Object

REMEMBERED_EVENTS = 2000
LONGEST_MESSAGE = 1024
"""Characters that Kubernetes takes."""
QUIET_SECONDS = 60.0
"""An event that repeats sooner is counted, and written with the next one after that."""


@dataclass
class _Told:
    count: int
    written_at: datetime


class Recorder:
    """Writes events. Its methods block."""

    def __init__(self, api: Api, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._api = api
        self._clock = clock
        self._told: OrderedDict[str, _Told] = OrderedDict()

    def record(self, pool: Object, event: Event) -> None:
        """Tell an event, or count it. ApiFault where it could not be written; nothing depends on it."""
        name, now = event_name(pool, event), self._clock()
        told = self._told.get(name)
        if told is None:
            self._tell_first(pool, event, name, now)
            return
        told.count += 1
        if (now - told.written_at).total_seconds() >= QUIET_SECONDS:
            self._tell_again(pool, name, told, now)

    def _tell_first(self, pool: Object, event: Event, name: str, now: datetime) -> None:
        namespace = pool["metadata"]["namespace"]
        told = _Told(1, now)
        try:
            self._api.create(event_object(pool, event, name, now))
        except ApiFault as fault:
            if fault.refusal is not Refusal.STALE:
                raise
            told.count = int(self._api.get(EVENTS, namespace, name).get("count") or 0) + 1
            self._tell_again(pool, name, told, now)
        self._told[name] = told
        while len(self._told) > REMEMBERED_EVENTS:
            self._told.popitem(last=False)

    def _tell_again(self, pool: Object, name: str, told: _Told, now: datetime) -> None:
        patch: Object = {"count": told.count, "lastTimestamp": _time(now)}
        try:
            self._api.merge(EVENTS, pool["metadata"]["namespace"], name, patch)
        except ApiFault as fault:
            if fault.refusal is not Refusal.NOT_FOUND:
                raise
            self._told.pop(name, None)  # it expired: the next time is the first again
        told.written_at = now


def event_name(pool: Object, event: Event) -> str:
    """Return the name of an event's object: the same for the same thing told of the same pool."""
    told = "\n".join((pool["metadata"]["uid"], event.type, event.reason, event.message))
    return f"{pool['metadata']['name']}.{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def event_object(pool: Object, event: Event, name: str, now: datetime) -> Object:
    """Return the Event as the API takes it."""
    metadata = pool["metadata"]
    message = event.message if len(event.message) <= LONGEST_MESSAGE else event.message[: LONGEST_MESSAGE - 3] + "..."
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": pool["apiVersion"],
            "kind": pool["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": message,
        "count": 1,
        "firstTimestamp": _time(now),
        "lastTimestamp": _time(now),
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "reportingInstance": os.uname().nodename[:128],
    }


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
