from __future__ import annotations

import pytest
from decodepool_worker.sessions.session import TRANSITIONS, SessionEvent, SessionState

LIVE = {SessionState.PREFILLING, SessionState.IDLE, SessionState.DECODING}


def test_closed_and_failed_are_final() -> None:
    assert {state for state, _ in TRANSITIONS} == LIVE


@pytest.mark.parametrize("state", sorted(LIVE))
@pytest.mark.parametrize(
    ("event", "to"),
    [
        (SessionEvent.STOP, SessionState.IDLE),
        (SessionEvent.CLOSE, SessionState.CLOSED),
        (SessionEvent.FAIL, SessionState.FAILED),
    ],
)
def test_every_live_session_can_be_stopped_closed_and_failed(
    state: SessionState, event: SessionEvent, to: SessionState
) -> None:
    assert TRANSITIONS[state, event] is to


@pytest.mark.parametrize("event", [SessionEvent.APPEND, SessionEvent.DECODE])
def test_a_decoding_session_takes_no_second_task(event: SessionEvent) -> None:
    assert (SessionState.DECODING, event) not in TRANSITIONS


def test_every_state_but_the_first_is_reached() -> None:
    assert set(TRANSITIONS.values()) == set(SessionState)
