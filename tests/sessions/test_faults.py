"""A fault of one session is its own; a fault of the engine is everybody's, and draws nothing."""

from __future__ import annotations

import pytest
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.errors import (
    SessionError,
    SessionGone,
)
from decodepool_worker.sessions.residence import Residence

from tests.sessions.checking_engine import (
    GREEDY,
    NAN_TOKEN,
    CheckingEngine,
    Listener,
    lone_tokens,
    prompt,
    run,
)


def test_logits_that_are_not_finite_end_that_session_alone_and_are_told(
    residence: Residence, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = [Listener() for _ in range(3)]
    prompts = [prompt(30), [*prompt(30), NAN_TOKEN], prompt(40, 1)]
    for tokens, listener in zip(prompts, listeners, strict=True):
        session = residence.create(tokens, sampling=GREEDY)
        residence.decode(session.id, DecodeRequest(max_tokens=20), listener)
        if NAN_TOKEN in tokens:
            failed = session
    run(residence)
    assert [listeners[0].tokens, listeners[2].tokens] == [lone_tokens(prompts[0], 20), lone_tokens(prompts[2], 20)]
    end = listeners[1].end
    assert end is not None
    assert end.error is not None
    assert (end.finish_reason, end.generated) == ("error", 0)
    with pytest.raises(SessionGone, match=end.error):
        residence.decode(failed.id, DecodeRequest(), Listener())
    assert residence.stats().totals.sessions_failed == 1
    assert residence.stats().pages.reserved == 8
    assert [record.getMessage() for record in caplog.records] == [f"session {failed.id} failed: {end.error}"]


def test_a_fault_of_the_engine_ends_everybody_and_draws_nothing(residence: Residence, engine: CheckingEngine) -> None:
    listeners = [Listener() for _ in range(3)]
    sessions = [residence.create(prompt(9, i), sampling=GREEDY) for i in range(3)]
    for session, listener in zip(sessions, listeners, strict=True):
        residence.decode(session.id, DecodeRequest(), listener)
    for _ in range(4):
        residence.tick()
    engine.broken = True
    residence.tick()
    for index, listener in enumerate(listeners):
        assert listener.end is not None
        assert listener.end.finish_reason == "error"
        assert "illegal memory access" in (listener.end.error or "")
        assert listener.tokens == lone_tokens(prompt(9, index), len(listener.tokens))
    engine.broken = False
    assert not residence.tick()
    for verb in (
        lambda: residence.create([1]),
        lambda: residence.append(sessions[0].id, [1]),
        lambda: residence.decode(sessions[0].id, DecodeRequest(), Listener()),
        lambda: residence.fork(sessions[0].id),
    ):
        with pytest.raises(SessionError, match="illegal memory access"):
            verb()
