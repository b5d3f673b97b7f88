"""What a decode keeps of its stream: everything, to the bit, in little memory."""

from __future__ import annotations

import tracemalloc

import pytest
from decodepool_worker.sessions import drawn as drawn_module
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.drawn import DrawnTokens
from decodepool_worker.sessions.events import TokenEvent
from decodepool_worker.sessions.residence import Residence

from tests.sessions.checking_engine import GREEDY, CheckingEngine, Listener, prompt, run

START = 40


def event(index: int, best: int | None) -> TokenEvent:
    text = ("", "ab", "\u20ac\U0001f600", "\ud800")[index % 4]
    if best is None:
        return TokenEvent(START + index, index * 7919, text)
    top = tuple((index + rank, -0.1 * rank - 1 / (index + 3)) for rank in range(max(0, best - index % 2)))
    return TokenEvent(START + index, index * 7919, text, -1 / (index + 3), top)


@pytest.mark.parametrize("best", [None, 0, 1, 20])
def test_events_come_back_as_they_were(best: int | None) -> None:
    events = [event(index, best) for index in range(50)]
    drawn = DrawnTokens(START)
    for each in events:
        drawn.append(each)
    assert list(drawn.tokens) == [each.token for each in events]
    for after in (START - 1, START, START + 33, START + 49):
        assert list(drawn.after(after)) == events[after + 1 - START :]


@pytest.mark.parametrize(("best", "most_bytes"), [(None, 24), (20, 300)], ids=["tokens", "20 log-probabilities"])
def test_a_kept_token_takes_little_memory(best: int | None, most_bytes: int) -> None:
    count = 4000
    drawn = DrawnTokens(START)
    tracemalloc.start()
    for index in range(count):
        drawn.append(event(index, best))
    own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, drawn_module.__file__)])
    tracemalloc.stop()
    assert sum(trace.size for trace in own.traces) / count < most_bytes


def test_a_resumed_stream_repeats_log_probabilities_to_the_bit(engine: CheckingEngine) -> None:
    residence = Residence(engine, context_tokens=256, sessions=4)
    session, first, again = residence.create(prompt(20), sampling=GREEDY), Listener(), Listener()
    residence.decode(session.id, DecodeRequest(max_tokens=12, top_logprobs=5), first)
    run(residence)
    residence.resume(session.id, 22, again)
    assert [len(each.top) for each in first.events] == [5] * 12
    assert again.events == first.events[3:]
