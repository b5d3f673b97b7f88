from __future__ import annotations

from typing import Any

import pytest
from decodepool_operator.api.kinds import CHILDREN, NODES, PODS
from decodepool_operator.shell.store import Store

DEPLOYMENTS = CHILDREN[0]
CHAT = ("team", "chat")


def made(name: str, version: int, uid: str = "u1") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "managedFields": [{"manager": "x"}]}, "spec": {"version": version}}


def labelled(name: str, version: int, uid: str = "u1", **labels: str) -> dict[str, Any]:
    body = made(name, version, uid)
    body["metadata"]["labels"] = {f"decodepool.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
    return body


@pytest.mark.parametrize(("second", "news"), [(7, False), (6, False), (8, True), (10, True)])
def test_the_newest_version_wins_whoever_brings_it(second: int, news: bool) -> None:
    store = Store()
    assert store.put(PODS, labelled("p", 7, pool="chat"))
    assert store.put(PODS, labelled("p", second, pool="chat")) is news
    [pod] = store.pods(CHAT)
    assert pod["spec"]["version"] == max(7, second)


def test_versions_are_numbers_and_not_texts() -> None:
    store = Store()
    store.put(PODS, labelled("p", 9, pool="chat"))
    assert store.put(PODS, labelled("p", 10, pool="chat"))


def test_an_object_made_anew_replaces_the_one_of_its_name() -> None:
    store = Store()
    store.put(PODS, labelled("p", 90, "old", pool="chat"))
    assert store.put(PODS, labelled("p", 91, "new", pool="chat"))
    assert not store.remove(PODS, made("p", 92, "old")), "the deletion of the old one says nothing of the new"
    assert [pod["metadata"]["uid"] for pod in store.pods(CHAT)] == ["new"]


def test_what_was_deleted_does_not_come_back_by_a_late_answer() -> None:
    store = Store()
    store.put(PODS, labelled("p", 5, pool="chat"))
    assert store.remove(PODS, made("p", 7))
    assert not store.put(PODS, labelled("p", 6, pool="chat"))
    assert store.pods(CHAT) == ()


def test_what_loses_its_label_and_gets_it_again_is_known_again() -> None:
    """A watch by labels says DELETED of what it does not select any more, with the version of that change."""
    store = Store()
    store.put(DEPLOYMENTS, labelled("chat-worker", 5, pool="chat"))
    assert store.remove(DEPLOYMENTS, labelled("chat-worker", 6, pool="chat"))
    assert store.children(CHAT) == ()
    assert store.put(DEPLOYMENTS, labelled("chat-worker", 7, pool="chat"))
    assert len(store.children(CHAT)) == 1


def test_a_label_that_was_given_back_already_is_not_lost_by_late_news() -> None:
    store = Store()
    store.put(DEPLOYMENTS, labelled("chat-worker", 5, pool="chat"))
    store.put(DEPLOYMENTS, labelled("chat-worker", 7, pool="chat"))
    assert not store.remove(DEPLOYMENTS, labelled("chat-worker", 6, pool="chat"))
    assert len(store.children(CHAT)) == 1


def test_children_and_pods_are_found_by_their_pool() -> None:
    store = Store()
    store.put(DEPLOYMENTS, labelled("chat-worker", 1, pool="chat"))
    store.put(DEPLOYMENTS, labelled("other-worker", 2, "u2", pool="other"))
    store.put(PODS, labelled("chat-1", 3, "u3", pool="chat"))
    assert [body["metadata"]["name"] for body in store.children(CHAT)] == ["chat-worker"]
    assert [body["metadata"]["name"] for body in store.pods(CHAT)] == ["chat-1"]


def test_a_pod_with_a_sidecar_belongs_to_its_pool_and_to_no_other() -> None:
    store = Store()
    store.put(PODS, labelled("app", 1, pool="", sidecar_of="chat"))
    assert len(store.pods(CHAT)) == 1
    assert store.pods(("team", "")) == ()


def test_a_stranger_is_shown_to_the_pool_whose_childs_name_it_bears() -> None:
    store = Store()
    store.claim(CHAT, DEPLOYMENTS, labelled("chat-worker", 1))
    assert len(store.children(CHAT)) == 1
    assert store.children(("team", "other")) == ()


def test_what_nobody_reads_is_not_kept() -> None:
    store = Store()
    store.put(PODS, labelled("p", 1, pool="chat"))
    store.put(NODES, {"metadata": {"name": "n", "uid": "n", "resourceVersion": "1"}, "status": {"images": [1] * 500}})
    assert "managedFields" not in store.pods(CHAT)[0]["metadata"]
    assert store.nodes()[0]["status"] == {}
