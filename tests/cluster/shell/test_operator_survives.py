"""Watches that go silent, an API server that is away, an operator that is killed: what is true afterwards."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import wait_until
from decodepool_cluster.relay import Relay
from decodepool_operator.api.kinds import POOLS
from decodepool_operator.definition.crd import crd
from decodepool_operator.shell.installed import crd_notice

from tests.cluster.shell.conftest import QUICK, Operators
from tests.cluster.shell.plane import OperatorProcess, Plane, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SILENT_SECONDS = [2, pytest.param(80, marks=pytest.mark.soak)]
"""After the operator has said that it is blind: at once, and longer than a watch may be quiet before it is begun anew,
so that the new one meets silence too.
"""
AWAY_SECONDS = [5, pytest.param(60, marks=pytest.mark.soak)]


def kubeconfig_through(relay: Relay, cluster: Cluster, folder: Path) -> Path:
    text = Path(f"{cluster.home}/admin.kubeconfig").read_text()
    changed = folder / "relayed.kubeconfig"
    changed.write_text(text.replace("127.0.0.1:6443", f"127.0.0.1:{relay.port}"))
    return changed


@pytest.mark.parametrize("seconds", SILENT_SECONDS)
def test_a_watch_that_went_silent_is_noticed_and_what_it_missed_is_handled(
    plane: Plane, space: str, model: str, operators: Operators, tmp_path: Path, seconds: float
) -> None:
    """A01, a watch goes silent: told by liveness while it lasts, and made good without a restart."""
    with Relay("127.0.0.1", 6443) as relay:
        operator = operators(kubeconfig_through(relay, plane.cluster, tmp_path))
        operator.start()
        pid = operator.pid
        for name in ("chat", "gone"):
            plane.make(space, name, model, sessionsPerWorker=4)
            until(partial(plane.follows, space, name, 4), f"{name} to be planned")
        relay.silence()
        plane.set_spec(space, "chat", sessionsPerWorker=6)
        plane.delete(POOLS, space, "gone")
        wait_until(lambda: operator.probe("/healthz") == 503, "a blind operator to say so", 30)
        time.sleep(seconds)
        relay.resume()
        until(lambda: plane.follows(space, "chat", 6), "the change to be handled", 120)
        wait_until(lambda: operator.metric("decodepool_operator_pools") == 1, "the deletion to be noticed", 120)
        wait_until(lambda: operator.probe("/healthz") == 200, "an operator that sees to say so", 30)
        assert operator.pid == pid


def test_a_silence_during_the_first_listing_is_survived(
    plane: Plane, space: str, model: str, operators: Operators, tmp_path: Path
) -> None:
    """A01, a watch goes silent before it has told anything."""
    plane.make(space, "chat", model, sessionsPerWorker=4)
    with Relay("127.0.0.1", 6443) as relay:
        operator = operators(kubeconfig_through(relay, plane.cluster, tmp_path))
        relay.silence()
        operator.start(ready=False)
        wait_until(lambda: operator.probe("/readyz") == 503, "an operator that waits to say so", 60)
        time.sleep(2 * float(QUICK["BLIND_LIMIT_SECONDS"]))
        assert operator.probe("/healthz") == 200, "a restart would bring nothing back"
        relay.resume()
        until(lambda: plane.follows(space, "chat", 4), "the pool to be handled", 120)


@pytest.mark.parametrize("seconds", AWAY_SECONDS)
def test_an_api_server_that_is_away_is_waited_for(
    plane: Plane, space: str, model: str, operator: OperatorProcess, seconds: float
) -> None:
    """A01, the API server is stopped and started: what changes afterwards is handled without a restart."""
    pid = operator.pid
    plane.make(space, "chat", model, sessionsPerWorker=4)
    until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
    plane.cluster.kill("kube-apiserver")
    time.sleep(seconds)
    plane.cluster.revive("kube-apiserver")
    wait_until(plane.cluster.is_serving, "the API server", 60)
    plane.set_spec(space, "chat", sessionsPerWorker=6)
    until(lambda: plane.follows(space, "chat", 6), "the change to be handled", 120)
    assert operator.pid == pid


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.soak)])
def test_an_operator_killed_at_any_moment_leaves_nothing_half_done(
    plane: Plane, space: str, model: str, operators: Operators, kills: int
) -> None:
    chance = random.Random(11)
    operator = operators()
    plane.make(space, "chat", model, sessionsPerWorker=4)
    for kill in range(kills):
        starting = kill % 2 == 0
        operator.start(ready=not starting)
        name = f"brief-{kill}"
        plane.make(space, name, model, sessionsPerWorker=2)
        plane.set_spec(space, "chat", sessionsPerWorker=4 + kill % 3)
        time.sleep(chance.uniform(0.3, 3.0) if starting else chance.uniform(0, 1.0))
        operator.kill()
        plane.delete(POOLS, space, name)
    last = 4 + (kills - 1) % 3
    operator.start()
    until(lambda: plane.follows(space, "chat", last), "the last spec to be followed", 60)
    until(
        lambda: all(child.startswith("chat") for _, child in plane.children(space)), "the others' children to go", 120
    )
    disturbed = plane.children(space)
    plane.make(space, "calm", model, sessionsPerWorker=4)
    until(lambda: plane.follows(space, "calm", 4), "a pool that nothing happened to")
    until(lambda: len(plane.children(space)) == 2 * len(disturbed), "no child too few, none too many")
    assert {(kind, name.replace("calm", "chat")) for kind, name in plane.children(space)} == disturbed


def test_a_stopped_operator_ends_cleanly_and_soon(plane: Plane, space: str, operator: OperatorProcess) -> None:
    begin = time.monotonic()
    assert operator.stop() == 0
    assert time.monotonic() - begin < 5
    assert [record["message"] for record in operator.records()] == ["starting", "stopped"]


def test_a_crd_older_than_the_operator_is_told_of(plane: Plane, space: str, model: str, operators: Operators) -> None:
    """A09, an upgrade leaves the old CRD: the operator says so, and the pools do."""
    old = crd()
    spec = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["cacheReserve"]
    plane.install(old)
    until(lambda: crd_notice(plane.api), "the API server to tell of the old CRD")
    try:
        operator = operators()
        operator.start()
        plane.make(space, "chat", model, sessionsPerWorker=4)
        until(
            lambda: "spec.cacheReserve" in plane.condition(space, "chat", "Degraded").get("message", ""), "a condition"
        )
        assert operator.metric("decodepool_operator_crd_outdated") == 1
        told = [each for each in operator.records() if "older than this operator" in each["message"]]
        assert len(told) == 1
        plane.install(crd())
        until(lambda: operator.metric("decodepool_operator_crd_outdated") == 0, "the new CRD to be noticed", 60)
        until(lambda: "CRD" not in plane.condition(space, "chat", "Degraded")["message"], "the condition to end")
    finally:
        plane.install(crd())
