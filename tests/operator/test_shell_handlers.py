from __future__ import annotations

import copy
import time
from typing import Any

import kopf
import pytest
from decodepool_operator.api.kinds import NODES, PODS, POOLS
from decodepool_operator.shell.handlers import Watches, kopf_settings, registry_of, watched_kinds
from decodepool_operator.shell.metrics import Metrics
from decodepool_operator.shell.store import Store
from decodepool_operator.shell.work_queue import WorkQueue

from tests.operator.pools import node, pool


@pytest.fixture
def watches() -> Watches:
    return Watches(Store(), WorkQueue(time.monotonic), Metrics())


def versioned(body: dict[str, Any], version: int) -> dict[str, Any]:
    made = copy.deepcopy(body)
    made["metadata"] |= {"resourceVersion": str(version), "uid": made["metadata"].get("uid", "u")}
    return made


def depth(watches: Watches) -> int:
    return watches._queue.depth


def test_an_operator_registers_nothing_that_writes_to_objects(watches: Watches) -> None:
    registry = registry_of(watches, watched_kinds(reads_nodes=True))
    assert not registry._changing.get_all_handlers(), "handlers of changes keep their progress in annotations"
    assert not registry._spawning.get_all_handlers(), "timers and daemons need a finalizer"
    assert not registry._webhooks.get_all_handlers()
    assert not registry._indexing.get_all_handlers(), "while indexes fill, each object wakes all that came before"
    assert registry._watching.get_all_handlers()


def test_no_wait_of_kopf_is_unbounded() -> None:
    settings = kopf_settings(watched_kinds(reads_nodes=True), "lease")
    waits = (
        settings.watching.server_timeout, settings.watching.client_timeout, settings.watching.connect_timeout,
        settings.watching.inactivity_timeout, settings.networking.request_timeout, settings.networking.connect_timeout,
    )  # fmt: skip
    assert all(wait is not None and 0 < wait < 600 for wait in waits)
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert not settings.posting.enabled


def test_only_what_may_concern_a_pool_is_watched() -> None:
    settings = kopf_settings(watched_kinds(reads_nodes=True), "lease")
    unlabelled = {kind.plural for kind in watched_kinds(reads_nodes=True) if kind.selector is None}
    assert unlabelled == {"decodepools", "nodes"}
    assert len(settings.watching.label_selectors) == len(watched_kinds(reads_nodes=True)) - 2


def test_an_echo_of_the_operators_own_write_wakes_nobody(watches: Watches) -> None:
    written = versioned(pool(), 7)
    watches.store.put(POOLS, written)
    watches.saw(POOLS, written)
    assert depth(watches) == 0


def test_a_pod_wakes_its_pool(watches: Watches) -> None:
    watches.saw(
        PODS, versioned({"metadata": {"name": "p", "namespace": "team", "labels": {"decodepool.dev/pool": "chat"}}}, 1)
    )
    assert depth(watches) == 1


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ({"metadata": {"annotations": {"kubelet": "beat"}}}, False),
        ({"status": {"allocatable": {"nvidia.com/gpu": "8"}}}, True),
        ({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}, True),
    ],
    ids=["a heartbeat", "another GPU", "a taint"],
)
def test_a_node_wakes_pools_only_with_what_it_offers(watches: Watches, change: dict[str, Any], wakes: bool) -> None:
    watches.store.put(POOLS, versioned(pool(), 1))
    before = versioned(node("n", gpus=1), 2)
    watches.store.put(NODES, before)
    after = versioned(before, 3)
    for part, fields in change.items():
        after[part] = {**after[part], **fields}
    watches.saw(NODES, after)
    assert depth(watches) == int(wakes)


def test_a_deletion_is_taken_by_its_uid(watches: Watches) -> None:
    watches.saw(POOLS, versioned(pool(), 1))
    old = versioned(pool(), 2)
    old["metadata"]["uid"] = "an older one of this name"
    watches.lost(POOLS, old)
    assert watches.store.pools() == (("team", "chat"),)
    watches.lost(POOLS, versioned(pool(), 3))
    assert watches.store.pools() == ()


def test_logging_in_needs_no_name_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from decodepool_operator.shell import handlers  # noqa: PLC0415 - to move its folder

    (tmp_path / "token").write_text("sesame\n")
    monkeypatch.setattr(handlers, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = handlers.login(settings=kopf.OperatorSettings(), logger=None)
    assert found is not None
    assert (found.server, found.token) == ("https://[fd00::1]:443", "sesame")
