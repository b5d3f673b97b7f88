from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from decodepool_operator.planner.state import Event
from decodepool_operator.shell.events import LONGEST_MESSAGE, QUIET_SECONDS, Recorder

from tests.operator.fake_api import FakeApi
from tests.operator.pools import pool

NO_ROOM = Event("Warning", "Unschedulable", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")


class Room:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.recorder = self.restarted()

    def restarted(self) -> Recorder:
        return Recorder(self.api, lambda: self.now)  # type: ignore[arg-type]


@pytest.fixture
def room() -> Room:
    return Room()


def test_what_repeats_is_one_event_with_a_count(room: Room) -> None:
    for _ in range(100):
        room.recorder.record(pool(), NO_ROOM)
        room.now += timedelta(seconds=6)
    [event] = room.api.of("Event")
    assert event["count"] == pytest.approx(100, abs=QUIET_SECONDS / 6)
    assert event["firstTimestamp"] == "2026-01-01T00:00:00Z"
    assert len(room.api.calls) <= 600 / QUIET_SECONDS + 1


def test_a_restarted_operator_counts_on(room: Room) -> None:
    room.recorder.record(pool(), NO_ROOM)
    room.restarted().record(pool(), NO_ROOM)
    assert [event["count"] for event in room.api.of("Event")] == [2]


def test_other_words_and_other_pools_are_other_events(room: Room) -> None:
    other = pool()
    other["metadata"]["uid"] = "other"
    for raw, event in ((pool(), NO_ROOM), (pool(), Event("Normal", "Ready", "1 of 1")), (other, NO_ROOM)):
        room.recorder.record(raw, event)
    assert len(room.api.of("Event")) == 3


def test_an_event_that_expired_is_told_anew(room: Room) -> None:
    room.recorder.record(pool(), NO_ROOM)
    room.api.objects.clear()
    for _ in range(2):
        room.now += timedelta(seconds=QUIET_SECONDS)
        room.recorder.record(pool(), NO_ROOM)
    assert [event["count"] for event in room.api.of("Event")] == [1]


def test_a_long_message_is_cut_to_what_the_api_takes(room: Room) -> None:
    room.recorder.record(pool(), Event("Warning", "X", "a" * 5000))
    assert len(room.api.of("Event")[0]["message"]) == LONGEST_MESSAGE


def test_an_event_is_about_its_pool(room: Room) -> None:
    room.recorder.record(pool(), NO_ROOM)
    about = room.api.of("Event")[0]["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("DecodePool", "chat", "pool-uid")
