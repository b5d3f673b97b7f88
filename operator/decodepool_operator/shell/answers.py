"""What the answers of workers and gateways say, and a Secret with keys. All of it is somebody else's text."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decodepool_operator.planner.state import Object, WorkerReport
from decodepool_operator.texts import is_one_word

STEADY_SHARE = 0.01
"""Measured bytes that moved by less are the same bytes: resident memory breathes."""
MOST_SESSIONS = 1_000_000
MOST_BYTES = 1 << 62
LONGEST_FINGERPRINT = 64
"""What a worker says comes from a pod that anybody may have chosen the image of: absurd numbers are no answer."""
QUEUED_METRIC = "decodepool_pool_queued"

_QUEUED = re.compile(rf"^{QUEUED_METRIC}(?:\{{[^}}]*\}})? (\S+)", re.MULTILINE)


def first_key(encoded: str | None) -> str | None:
    """Return the first key of a key file in a Secret that a header can carry; None where it has none."""
    try:
        lines = base64.b64decode(encoded or "").decode().splitlines()
    except ValueError:
        return None
    keys = (line.strip() for line in lines if not line.lstrip().startswith("#"))
    return next((key for key in keys if is_one_word(key)), None)


def report_of(pod: Object, answer: Mapping[str, Any]) -> WorkerReport:
    """Return what a worker's `/v1/capacity` says; ValueError, KeyError or TypeError where it makes no sense."""
    sessions = answer["sessions"]
    capacity, active = sessions["capacity"], sessions["active"]
    if not (_is_amount(capacity) and _is_amount(active) and active <= capacity <= MOST_SESSIONS):
        raise ValueError("these are no numbers of sessions")
    return WorkerReport(
        pod=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        sessions_capacity=capacity,
        sessions_active=active,
        measured_bytes=_amounts(answer.get("measured")),
        fingerprint=_fingerprint(answer.get("system_fingerprint")),
    )


def settled(before: WorkerReport | None, now: WorkerReport) -> WorkerReport:
    """Return a report whose measured bytes stay as they were where they only breathe."""
    if before is None or before.uid != now.uid:
        return now
    steady = {
        name: before.measured_bytes[name] if _is_steady(before.measured_bytes.get(name), value) else value
        for name, value in now.measured_bytes.items()
    }
    return replace(now, measured_bytes=steady)


def queued_of(text: str) -> int | None:
    """Return the waiting sessions in a gateway's metrics; None where there is no such metric."""
    try:
        values = [int(float(value)) for value in _QUEUED.findall(text)]
    except (ValueError, OverflowError):
        return None
    return sum(values) if values else None


def _is_steady(before: int | None, now: int) -> bool:
    return before is not None and abs(now - before) <= STEADY_SHARE * max(before, now)


def _amounts(written: object) -> dict[str, int]:
    if not isinstance(written, dict):
        return {}
    return {name: value for name, value in written.items() if _is_amount(value)}


def _fingerprint(written: object) -> str | None:
    """Return a fingerprint that may stand in a condition."""
    is_one = isinstance(written, str) and len(written) <= LONGEST_FINGERPRINT and is_one_word(written)
    return str(written) if is_one else None


def _is_amount(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_BYTES
