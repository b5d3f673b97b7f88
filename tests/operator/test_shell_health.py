from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from decodepool_operator.shell.health import BLIND_AUDITS, LONGEST_LOOK_SECONDS, Health, Heartbeat, Identity, lease

OURS = Identity("system", "decodepool-operator", "host-1")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(120, clock)


def heartbeat(health: Health) -> Heartbeat:
    nobody: Any = None
    return Heartbeat(nobody, OURS, health, nobody)


def test_an_operator_that_sees_its_heartbeat_is_well(health: Health, clock: Clock) -> None:
    for _ in range(50):
        clock.now += 20
        heartbeat(health).saw(lease(OURS, datetime.now(UTC)))
        assert health.troubles() == []


def test_a_blind_operator_says_so_though_its_port_answers(health: Health, clock: Clock) -> None:
    health.begin()
    clock.now = 121
    assert health.troubles() == ["no heartbeat has come back through the watch for 121 s"]


def test_an_operator_that_waits_for_its_api_server_to_come_is_left_to_wait(health: Health, clock: Clock) -> None:
    clock.now = 3600
    assert health.troubles() == []
    assert not health.started, "and is not ready meanwhile"


STRANGERS = {
    "another's": Identity("system", "decodepool-operator", "host-2"),
    "in another namespace": Identity("other", "decodepool-operator", "host-1"),
    "another lease": Identity("system", "other", "host-1"),
}


@pytest.mark.parametrize("whose", STRANGERS.values(), ids=STRANGERS)
def test_somebody_elses_heartbeat_proves_nothing(health: Health, clock: Clock, whose: Identity) -> None:
    heartbeat(health).saw(lease(whose, datetime.now(UTC)))
    health.begin()
    clock.now = 121
    heartbeat(health).saw(lease(whose, datetime.now(UTC)))
    assert health.troubles()


def test_one_late_watch_is_no_trouble_and_a_dead_one_is(health: Health) -> None:
    health.audited("pods", 3)
    assert health.troubles() == []
    for _ in range(BLIND_AUDITS - 1):
        health.audited("pods", 1)
    assert health.troubles() == ["the watch of pods keeps changes to itself"]
    health.audited("pods", 0)
    assert health.troubles() == []


def test_a_look_that_never_ends_is_a_trouble(clock: Clock) -> None:
    health = Health(120, clock, longest_look_seconds=lambda: LONGEST_LOOK_SECONDS + 1)
    assert len(health.troubles()) == 1


def test_the_first_heartbeats_have_until_the_listing_ends_and_then_some(health: Health, clock: Clock) -> None:
    clock.now = 600
    health.begin()
    assert health.started
    clock.now = 719
    assert health.troubles() == []
