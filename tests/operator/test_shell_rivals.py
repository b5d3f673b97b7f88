from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from decodepool_operator.shell.health import Identity, lease
from decodepool_operator.shell.rivals import OPERATORS, Rivals

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OURS = Identity("system", "decodepool-operator", "host-1")
THEIRS = Identity("other", "decodepool-operator", "host-2")


class Leases:
    """An API server with Leases of operators, each with the seconds at which it was written."""

    def __init__(self) -> None:
        self.beats: dict[Identity, int] = {}

    def call(self, method: str, path: str, *, query: Any) -> Any:
        assert (method, query) == ("GET", [("labelSelector", OPERATORS)])
        return {"items": [lease(whose, NOON + timedelta(seconds=at)) for whose, at in self.beats.items()]}


def rivals(api: Any) -> Rivals:
    return Rivals(api, OURS.holder, [None])


def test_an_operator_whose_heart_beats_on_is_a_rival_until_it_stops() -> None:
    api = Leases()
    one = rivals(api)
    looks = []
    for at in (0, 20, 40, 40):
        api.beats = {OURS: at, THEIRS: at}
        looks.append(one.look())
    assert looks == [[], ["other/decodepool-operator"], ["other/decodepool-operator"], []]


@pytest.mark.parametrize(
    "others", [{OURS: 0}, {THEIRS: 0}, {Identity("system", "decodepool-operator", "host-0"): 0}, {}],
    ids=["our own", "one that has ended", "our own pod of before", "nobody's"],
)  # fmt: skip
def test_whoever_does_not_go_on_is_none(others: dict[Identity, int]) -> None:
    api = Leases()
    one = rivals(api)
    for at in (0, 20, 40):
        api.beats = {**others, OURS: at}
        assert one.look() == []


def test_a_heartbeat_is_found_by_its_labels() -> None:
    labels = lease(OURS, NOON)["metadata"]["labels"]
    assert ",".join(f"{name}={value}" for name, value in labels.items()) == OPERATORS
