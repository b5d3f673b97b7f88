"""Steps that run beside the process: what one drew is told while the next one runs, in order, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from decodepool_worker.engine.rows import Outcome, Span
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.stats import StepReport

from tests.sessions.checking_engine import GREEDY, SAMPLED, BesideEngine, Listener, lone_tokens, prompt


class TellingEngine(BesideEngine):
    """Writes down when a step starts and when it is waited for."""

    def __init__(self) -> None:
        super().__init__(page_count=24, slot_count=4)
        self.log: list[str] = []

    def begin(self, spans: Sequence[Span]) -> Callable[[], list[Outcome]]:
        self.log.append("begun")
        return partial(self._waited_for, super().begin(spans))

    def _waited_for(self, outcomes: Callable[[], list[Outcome]]) -> list[Outcome]:
        self.log.append("awaited")
        return outcomes()


@pytest.fixture
def engine() -> TellingEngine:
    return TellingEngine()


@pytest.fixture
def residence(engine: TellingEngine) -> Residence:
    return Residence(engine, context_tokens=256, sessions=4)


def decoding(residence: Residence, listener: Listener, **asked: object) -> str:
    """Begin a decode whose prompt is evaluated, and return its session's id."""
    session = residence.create(prompt(20), sampling=GREEDY)
    residence.tick()
    residence.decode(session.id, DecodeRequest(**asked), listener)  # type: ignore[arg-type]
    return session.id


def test_a_step_begins_before_the_one_ahead_is_read_and_tokens_are_told_while_both_run(
    residence: Residence, engine: TellingEngine
) -> None:
    listener = Listener()
    decoding(residence, listener, max_tokens=9)
    residence.when_told(lambda: engine.log.append(f"told {len(listener.tokens)}"))
    engine.log.clear()
    for _ in range(3):
        residence.tick()
    drawn_from_what_is_resident = ["begun", "told 0", "awaited"]
    then = ["begun", "begun", "told 1", "awaited", "begun", "told 2", "awaited"]
    assert engine.log == [*drawn_from_what_is_resident, *then]


def test_the_last_token_and_the_end_are_told_at_once(residence: Residence) -> None:
    listener = Listener()
    decoding(residence, listener, max_tokens=3)
    for _ in range(3):
        residence.tick()
    assert listener.tokens == lone_tokens(prompt(20), 3)
    assert listener.end is not None
    assert listener.end.finish_reason == "length"


def test_a_stream_with_a_stop_string_is_told_at_once(residence: Residence) -> None:
    listener = Listener()
    decoding(residence, listener, max_tokens=9, stop_strings=("never",))
    residence.tick()
    assert len(listener.tokens) == 1


@pytest.mark.parametrize("end", ["cancel", "close", "end_streams", "leave"])
def test_whoever_ends_a_stream_hears_of_its_last_token_first(residence: Residence, end: str) -> None:
    listener = Listener()
    session_id = decoding(residence, listener, max_tokens=9)
    for _ in range(4):
        residence.tick()
    assert len(listener.tokens) == 3
    ends: dict[str, Callable[[], object]] = {
        "cancel": lambda: residence.cancel(session_id),
        "close": lambda: residence.close(session_id),
        "end_streams": lambda: residence.end_streams("over"),
        "leave": lambda: residence.leave(session_id, listener),
    }
    ends[end]()
    assert listener.tokens == lone_tokens(prompt(20), 4)
    assert listener.end is not None
    assert listener.end.length == 24


def test_who_takes_a_stream_over_misses_nothing(residence: Residence) -> None:
    first, second = Listener(), Listener()
    session_id = decoding(residence, first, max_tokens=9)
    for _ in range(4):
        residence.tick()
    residence.resume(session_id, 20, second)
    while residence.tick():
        pass
    assert [*first.tokens[:1], *second.tokens] == lone_tokens(prompt(20), 9)


def test_an_engine_that_fails_takes_no_token_back(residence: Residence, engine: TellingEngine) -> None:
    listener = Listener()
    decoding(residence, listener, max_tokens=9)
    for _ in range(4):
        residence.tick()
    engine.broken = True
    residence.tick()
    assert listener.tokens == lone_tokens(prompt(20), 4)
    assert listener.end is not None
    assert listener.end.finish_reason == "error"
    assert "illegal memory access" in str(residence.fault)


def test_a_stop_token_is_found_one_step_late_and_the_row_beyond_it_reaches_nobody(
    residence: Residence, engine: TellingEngine
) -> None:
    expected = lone_tokens(prompt(20), 30)
    stop = next(token for token in expected[4:] if token not in expected[:4])
    stopped, beside = Listener(), Listener()
    session_id = decoding(residence, stopped, stop_tokens=frozenset({stop}))
    residence.decode(residence.fork(session_id, at=20)[0].id, DecodeRequest(max_tokens=30), beside)
    while residence.tick():
        pass
    assert stopped.tokens == expected[: expected.index(stop) + 1]
    assert stopped.end is not None
    assert stopped.end.length == residence.info(session_id).length == 20 + len(stopped.tokens)
    assert beside.tokens == expected
    assert residence.stats().totals.decoded_tokens == len(stopped.tokens) + 30
    rows = sum(rows for step in engine.steps for _, rows in step)
    assert rows == 20 + (len(stopped.tokens) - 1) + 1 + 29, "the prompt, each token but the last, that one too, others"
    follow_up = Listener()
    residence.append(session_id, prompt(9, 1))
    residence.decode(session_id, DecodeRequest(max_tokens=3), follow_up)
    while residence.tick():
        pass
    assert follow_up.tokens == lone_tokens([*prompt(20), *stopped.tokens, *prompt(9, 1)], 3)


def test_a_length_is_foreseen_and_no_row_is_evaluated_beyond_it(residence: Residence, engine: TellingEngine) -> None:
    listener = Listener()
    decoding(residence, listener, max_tokens=9)
    while residence.tick():
        pass
    assert listener.tokens == lone_tokens(prompt(20), 9)
    assert sum(rows for step in engine.steps for _, rows in step) == 20 + 8


def test_pages_of_a_session_closed_under_way_serve_the_next_one(residence: Residence) -> None:
    for variant in range(8):  # more than fit into the pages side by side
        leaving, coming = Listener(), Listener()
        session = residence.create(prompt(60), sampling=GREEDY)
        residence.decode(session.id, DecodeRequest(), leaving)
        for _ in range(5):
            residence.tick()
        residence.close(session.id)
        newcomer = residence.create(prompt(120, variant), sampling=GREEDY)
        residence.decode(newcomer.id, DecodeRequest(max_tokens=20), coming)
        while residence.tick():
            pass
        assert leaving.tokens == lone_tokens(prompt(60), len(leaving.tokens))
        assert coming.tokens == lone_tokens(prompt(120, variant), 20)
        residence.close(newcomer.id)


def test_a_token_that_the_process_draws_is_waited_for(residence: Residence, engine: TellingEngine) -> None:
    session, listener = residence.create(prompt(20), sampling=SAMPLED, seed=3), Listener()
    residence.decode(session.id, DecodeRequest(max_tokens=9), listener)
    while residence.tick():
        pass
    assert listener.tokens == lone_tokens(prompt(20), 9, seed=3, sampling=SAMPLED)
    assert engine.most_under_way == 1


def test_a_step_counts_from_the_end_of_the_one_ahead() -> None:
    now, reports = [0.0], list[StepReport]()
    engine = BesideEngine(page_count=24, slot_count=4)
    residence = Residence(engine, clock=lambda: now[0], context_tokens=256, sessions=4, observe_step=reports.append)
    residence.when_told(lambda: now.append(now.pop() + 1.0))
    residence.decode(residence.create(prompt(20), sampling=GREEDY).id, DecodeRequest(max_tokens=6), Listener())
    while residence.tick():
        pass
    assert engine.most_under_way == 2
    assert [report.seconds for report in reports] == [1.0] * 6
