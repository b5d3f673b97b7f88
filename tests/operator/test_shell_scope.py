from __future__ import annotations

from typing import Any

from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import NODES, POOLS, Kind
from decodepool_operator.shell.handlers import watched_kinds
from decodepool_operator.shell.scope import Scope


class Rights:
    """An API server that refuses to list a kind in a namespace, or does not answer at all."""

    def __init__(self) -> None:
        self.refused: set[tuple[str, str]] = set()
        self.is_away = False
        self.asked: set[Kind] = set()

    def try_list(self, kind: Kind, namespace: str) -> None:
        self.asked.add(kind)
        if self.is_away:
            raise ApiFault(Refusal.UNAVAILABLE, "no answer")
        if (namespace, kind.plural) in self.refused:
            raise ApiFault(Refusal.FORBIDDEN, f"cannot list {kind.plural} in {namespace}")


def scope(api: Any) -> Scope:
    return Scope(api, ["a", "b"], watched_kinds(reads_nodes=True))


def test_a_namespace_is_served_where_every_kind_of_a_pool_can_be_listed() -> None:
    api = Rights()
    api.refused = {("b", "jobs")}
    one = scope(api)
    assert (one.look(), one.served, one.unserved) == (True, ("a",), 1)
    api.refused.clear()
    assert (one.look(), one.served, one.unserved) == (True, ("a", "b"), 0)
    assert not one.look(), "nothing has changed since"
    assert POOLS in api.asked
    assert NODES not in api.asked, "which are in no namespace"


def test_a_namespace_that_is_lost_is_told_once(caplog: Any) -> None:
    api = Rights()
    one = scope(api)
    one.look()
    api.refused = {("b", "decodepools")}
    assert [one.look() for _ in range(3)] == [True, False, False]
    assert [(each.fields["namespace"], each.fields["fault"]) for each in caplog.records] == [
        ("b", "cannot list decodepools in b")
    ]


def test_an_api_server_that_is_away_takes_no_namespace_along() -> None:
    api = Rights()
    one = scope(api)
    api.is_away = True
    assert (one.look(), one.served) == (False, ())
    api.is_away = False
    one.look()
    api.is_away = True
    assert (one.look(), one.served) == (False, ("a", "b"))
