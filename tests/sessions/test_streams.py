"""Text, stop strings, and streams that are resumed."""

from __future__ import annotations

import pytest
from decodepool_worker.engine.rows import PAGE_TOKENS
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.errors import NothingToResume
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.session import SessionState

from tests.sessions.checking_engine import GREEDY, CheckingEngine, Listener, lone_tokens, prompt, run


def spelled(token: int) -> str:
    return f"{token:02d},"


class Speller:
    """Spells a token, and holds back what follows its last comma, as a character cut in two would be."""

    def push(self, token: int) -> str:
        return spelled(token)

    def finish(self) -> str:
        return "."


@pytest.fixture
def speaking(engine: CheckingEngine) -> Residence:
    return Residence(engine, lambda after: Speller(), context_tokens=256, sessions=4)


ALONE = lone_tokens(prompt(20), 60)
TEXT = "".join(spelled(token) for token in ALONE)


def first_unique(text: str, begin: int, length: int) -> str:
    piece = text[begin : begin + length]
    assert text.index(piece) == begin
    return piece


@pytest.mark.parametrize("begin", [30, 31, 32], ids=["at a token", "inside a token", "at a comma"])
@pytest.mark.parametrize("length", [6, 7, 9, 11])
def test_a_stop_string_across_tokens_ends_the_text_before_it(speaking: Residence, begin: int, length: int) -> None:
    stop = first_unique(TEXT, begin, length)
    session, listener = speaking.create(prompt(20), sampling=GREEDY), Listener()
    speaking.decode(session.id, DecodeRequest(stop_strings=(stop, "no such text")), listener)
    run(speaking)
    drawn = -(-(begin + length) // 3)
    assert listener.text == TEXT[:begin]
    assert listener.tokens == ALONE[:drawn], "the session keeps the tokens that spelled the stop"
    assert listener.end is not None
    assert (listener.end.finish_reason, listener.end.stop, listener.end.length) == ("stop", stop, 20 + drawn)


def test_text_held_back_for_a_stop_that_never_comes_is_not_lost(speaking: Residence) -> None:
    session, listener = speaking.create(prompt(20), sampling=GREEDY), Listener()
    speaking.decode(session.id, DecodeRequest(max_tokens=10, stop_strings=(TEXT[:30] + "never",)), listener)
    run(speaking)
    assert [event.text for event in listener.events] == [""] * 10
    assert listener.text == TEXT[:30] + "."


def test_a_stop_id_is_not_part_of_the_text(speaking: Residence) -> None:
    session, listener = speaking.create(prompt(20), sampling=GREEDY), Listener()
    speaking.decode(session.id, DecodeRequest(stop_tokens=frozenset({ALONE[9]})), listener)
    run(speaking)
    cut = ALONE.index(ALONE[9])
    assert listener.text == "".join(spelled(token) for token in ALONE[:cut]) + "."


def test_a_fault_in_making_text_is_that_sessions_own(engine: CheckingEngine) -> None:
    class Broken(Speller):
        def push(self, token: int) -> str:
            raise KeyError(token)

    residence = Residence(
        engine, lambda after: Broken() if after == 1 else Speller(), context_tokens=PAGE_TOKENS, sessions=2
    )
    bad, good = Listener(), Listener()
    for token, listener in ((1, bad), (2, good)):
        residence.decode(residence.create([token], sampling=GREEDY).id, DecodeRequest(max_tokens=9), listener)
    run(residence)
    assert bad.end is not None
    assert bad.end.finish_reason == "error"
    assert good.tokens == lone_tokens([2], 9)


@pytest.mark.parametrize("cut", [0, 1, 5, 31, 32], ids="after {} tokens".format)
@pytest.mark.parametrize("lost", [0, 1, 4])
def test_a_resumed_stream_misses_nothing(speaking: Residence, cut: int, lost: int) -> None:
    stop = first_unique(TEXT, 91, 8)
    whole, session = Listener(), speaking.create(prompt(20), sampling=GREEDY)
    speaking.decode(session.id, DecodeRequest(max_tokens=40, stop_strings=(stop,)), whole)
    run(speaking)
    again, before, after = speaking.create(prompt(20), sampling=GREEDY), Listener(), Listener()
    speaking.decode(again.id, DecodeRequest(max_tokens=40, stop_strings=(stop,)), before)
    while len(before.events) < cut:
        speaking.tick()
    speaking.leave(again.id, before)
    assert speaking.info(again.id).state is SessionState.IDLE
    seen = before.events[: max(cut - lost, 0)]
    speaking.resume(again.id, 20 + len(seen) - 1, after)
    run(speaking)
    assert seen + after.events == whole.events
    assert after.end == whole.end


def test_a_finished_decode_can_be_heard_again(speaking: Residence) -> None:
    session, first, second = speaking.create(prompt(20), sampling=GREEDY), Listener(), Listener()
    speaking.decode(session.id, DecodeRequest(max_tokens=10), first)
    run(speaking)
    speaking.resume(session.id, 25, second)
    assert (second.events, second.end) == (first.events[6:], first.end)
    assert not speaking.tick()


def test_a_resumed_stream_takes_over_from_one_that_still_listens(speaking: Residence) -> None:
    session, old, new = speaking.create(prompt(20), sampling=GREEDY), Listener(), Listener()
    speaking.decode(session.id, DecodeRequest(max_tokens=10), old)
    for _ in range(4):
        speaking.tick()
    speaking.resume(session.id, 21, new)
    speaking.leave(session.id, old)
    run(speaking)
    assert old.end is not None
    assert (old.end.finish_reason, old.end.error) == ("cancelled", "resumed by another stream")
    assert old.tokens[:2] + new.tokens == ALONE[:10]


def test_whoever_left_an_ended_stream_cancels_nobody_else(speaking: Residence) -> None:
    session, old, new = speaking.create(prompt(20), sampling=GREEDY), Listener(), Listener()
    speaking.decode(session.id, DecodeRequest(max_tokens=3), old)
    run(speaking)
    speaking.decode(session.id, DecodeRequest(max_tokens=7), new)
    speaking.tick()
    speaking.leave(session.id, old)
    run(speaking)
    assert new.tokens == ALONE[3:10]


@pytest.mark.parametrize("after", [18, 30, 1000, -5])
def test_only_what_was_drawn_can_be_resumed_after(speaking: Residence, after: int) -> None:
    session = speaking.create(prompt(20), sampling=GREEDY)
    speaking.decode(session.id, DecodeRequest(max_tokens=10), Listener())
    run(speaking)
    with pytest.raises(NothingToResume, match="its decode drew 20 to 29"):
        speaking.resume(session.id, after, Listener())


def test_an_append_makes_the_last_decode_a_thing_of_the_past(speaking: Residence) -> None:
    session = speaking.create(prompt(20), sampling=GREEDY)
    speaking.decode(session.id, DecodeRequest(max_tokens=10), Listener())
    run(speaking)
    speaking.append(session.id, [1])
    with pytest.raises(NothingToResume, match="it has no decode"):
        speaking.resume(session.id, 25, Listener())
