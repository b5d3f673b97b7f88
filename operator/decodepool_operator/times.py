"""Times as Kubernetes writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def written(moment: datetime) -> str:
    """Return a time as an API object holds it, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(text: object) -> datetime | None:
    """Return the time that a text stands for; None where it is none."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
