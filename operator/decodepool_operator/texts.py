"""Kubernetes' own words as they may stand in a condition: one line, and the same at every look."""

from __future__ import annotations

import re

from decodepool_sizing.errors import one_line

MAX_CHARACTERS = 400
_TIMES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z?|\bback-off \d+m?\d*s?\b")
_UIDS = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_CONTAINERS = re.compile(r'\b(container|task) "[0-9a-f]{64}"')


def steady(text: str, pool_name: str) -> str:
    """Return a message without what changes from look to look: names of pods, times, ids. Else every status write
    would be news, and wake the operator for the next.
    """
    pod = re.compile(rf"\b{re.escape(pool_name)}-(worker|gateway|reader)-[a-z0-9]{{1,10}}(-[a-z0-9]{{5}})?\b")
    same = pod.sub(r"\1", _CONTAINERS.sub(r"\1 …", _UIDS.sub("…", _TIMES.sub("…", text))))
    plain = one_line(same).strip()
    return plain if len(plain) <= MAX_CHARACTERS else plain[: MAX_CHARACTERS - 1] + "…"


def make_printable(record: object, *fields: str) -> None:
    """Make texts of a frozen record, as it is made, one printable line each: nobody who tells it can forget to."""
    for each in fields:
        object.__setattr__(record, each, one_line(getattr(record, each)))


def last_line(text: str) -> str:
    """Return the last line that says something: what a program died of."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def is_one_word(text: str) -> bool:
    """Say whether a text is one word of printable ASCII: what a header carries, whichever library sends it."""
    return text.isascii() and text.isprintable() and bool(text) and " " not in text


def count(number: int, noun: str) -> str:
    """Return `1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
