"""Admission, appends, decodes and their ends, one session or a few at a time."""

from __future__ import annotations

import sys
from itertools import chain

import pytest
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.errors import (
    NoRoom,
    SessionError,
)
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.session import SessionState
from decodepool_worker.sessions.stats import StepReport

from tests.sessions.checking_engine import (
    GREEDY,
    SAMPLED,
    CheckingEngine,
    Listener,
    decode,
    lone_tokens,
    prompt,
    run,
)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 200])
def test_a_stream_is_that_of_a_lone_session(residence: Residence, length: int) -> None:
    session = residence.create(prompt(length), sampling=GREEDY)
    assert decode(residence, session.id, 20) == lone_tokens(prompt(length), 20)
    assert residence.tokens(session.id) == prompt(length) + lone_tokens(prompt(length), 20)


def test_batch_mates_change_nothing(residence: Residence) -> None:
    lengths, listeners = (3, 64, 100, 200), [Listener() for _ in range(4)]
    for index, (length, listener) in enumerate(zip(lengths, listeners, strict=True)):
        session = residence.create(prompt(length, index), seed=index, sampling=SAMPLED)
        residence.decode(session.id, DecodeRequest(max_tokens=30), listener)
        residence.tick()
    run(residence)
    for index, (length, listener) in enumerate(zip(lengths, listeners, strict=True)):
        assert listener.tokens == lone_tokens(prompt(length, index), 30, seed=index, sampling=SAMPLED)


def test_a_decode_cut_into_calls_draws_the_same_tokens(residence: Residence) -> None:
    session = residence.create(prompt(50), seed=5, sampling=SAMPLED)
    parts = [decode(residence, session.id, count) for count in (7, 1, 1, 20, 3)]
    assert list(chain.from_iterable(parts)) == lone_tokens(prompt(50), 32, seed=5, sampling=SAMPLED)


def test_the_first_token_comes_with_the_last_chunk_of_its_prompt(residence: Residence, engine: CheckingEngine) -> None:
    session = residence.create(prompt(100))
    residence.decode(session.id, DecodeRequest(max_tokens=1), Listener())
    assert run(residence) == 1
    assert engine.steps == [[(0, 100)]]


def test_a_prompt_is_evaluated_before_anybody_decodes(residence: Residence, engine: CheckingEngine) -> None:
    session = residence.create(prompt(100))
    assert session.state is SessionState.PREFILLING
    run(residence)
    assert residence.info(session.id).state is SessionState.IDLE
    engine.steps.clear()
    decode(residence, session.id, 2)
    assert engine.steps == [[(100, 0)], [(100, 1)]]


def test_logits_are_made_for_the_last_row_of_a_prompt_alone(residence: Residence, engine: CheckingEngine) -> None:
    residence.create(prompt(256))
    assert run(residence) == 2
    assert engine.logits_kept == 1


def test_prompts_take_turns_beside_a_decode(residence: Residence) -> None:
    residence.decode(residence.create([1]).id, DecodeRequest(), Listener())
    residence.tick()
    prompts = [residence.create(prompt(200, variant)) for variant in range(1, 4)]
    seen: list[list[int]] = []
    while len(seen) < 6:
        residence.tick()
        if prompts[0].evaluated_count:  # not in a step that was under way when they came
            seen.append([session.evaluated_count for session in prompts])
    assert seen == [[64, 0, 0], [64, 64, 0], [64, 64, 64], [128, 64, 64], [128, 128, 64], [128, 128, 128]]


def test_appended_tokens_are_queued_behind_those_under_way(residence: Residence) -> None:
    session = residence.create(prompt(150), sampling=GREEDY)
    residence.tick()
    residence.append(session.id, prompt(60, 1))
    assert decode(residence, session.id, 10) == lone_tokens(prompt(150) + prompt(60, 1), 10)


def test_a_session_without_a_seed_is_told_its_own(residence: Residence) -> None:
    first, second = residence.create([1], sampling=SAMPLED), residence.create([1], sampling=SAMPLED)
    assert first.seed != second.seed
    assert 0 <= first.seed < 2**63
    assert decode(residence, first.id, 20) == lone_tokens([1], 20, seed=first.seed, sampling=SAMPLED)


def test_a_decode_may_sample_otherwise_than_its_session(residence: Residence) -> None:
    session, listener = residence.create([1, 2], seed=1, sampling=GREEDY), Listener()
    residence.decode(session.id, DecodeRequest(max_tokens=9, sampling=SAMPLED), listener)
    run(residence)
    assert listener.tokens == lone_tokens([1, 2], 9, seed=1, sampling=SAMPLED)


@pytest.mark.parametrize("length", [254, 255, 256])
@pytest.mark.parametrize("asked", [0, 1, 2, 1000, None])
def test_at_the_end_of_the_context_exactly_the_tokens_that_fit(
    residence: Residence, length: int, asked: int | None
) -> None:
    session, listener = residence.create(prompt(length), sampling=GREEDY), Listener()
    residence.decode(session.id, DecodeRequest(max_tokens=asked), listener)
    run(residence)
    fits = min(256 - length, 256 if asked is None else asked)
    assert listener.tokens == lone_tokens(prompt(length), fits)
    assert listener.end is not None
    assert (listener.end.finish_reason, listener.end.length, listener.end.generated) == ("length", length + fits, fits)


def test_a_full_session_can_be_forked_and_its_neighbours_go_on(residence: Residence) -> None:
    others = [(residence.create(prompt(9, i), sampling=GREEDY), Listener()) for i in range(2)]
    for session, listener in others:
        residence.decode(session.id, DecodeRequest(max_tokens=40), listener)
    full = residence.create(prompt(256), sampling=GREEDY)
    assert decode(residence, full.id) == []
    (fork,) = residence.fork(full.id, at=250)
    assert decode(residence, fork.id) == lone_tokens(prompt(250), 6)
    assert [listener.tokens for _, listener in others] == [lone_tokens(prompt(9, i), 40) for i in range(2)]


def test_sessions_are_admitted_up_to_the_reserve_and_no_further(residence: Residence) -> None:
    made = [residence.create([1]) for _ in range(4)]
    with pytest.raises(NoRoom, match="no room for 1 more: 4 sessions are resident of 4"):
        residence.create([1])
    residence.close(made[2].id)
    residence.create([1])


def test_the_whole_reserve_can_be_filled_to_the_last_token(residence: Residence) -> None:
    listeners = [Listener() for _ in range(4)]
    for index, listener in enumerate(listeners):
        residence.decode(residence.create(prompt(3, index), sampling=GREEDY).id, DecodeRequest(), listener)
    run(residence)
    assert [listener.tokens for listener in listeners] == [lone_tokens(prompt(3, index), 253) for index in range(4)]
    assert residence.stats().pages.used == residence.stats().pages.reserved == 16


def test_a_cancelled_decode_goes_on_as_if_its_length_had_been_asked_for(residence: Residence) -> None:
    session, listener = residence.create(prompt(70), seed=1, sampling=SAMPLED), Listener()
    residence.decode(session.id, DecodeRequest(), listener)
    for _ in range(12):
        residence.tick()
    assert residence.cancel(session.id)
    assert run(residence) <= 1, "more than the step that was under way"
    assert listener.end is not None
    assert (listener.end.finish_reason, listener.end.length) == ("cancelled", 70 + len(listener.tokens))
    rest = decode(residence, session.id, 10)
    expected = lone_tokens(prompt(70), len(listener.tokens) + 10, seed=1, sampling=SAMPLED)
    assert listener.tokens + rest == expected


def test_a_cancelled_prefill_rests_until_somebody_needs_it(residence: Residence) -> None:
    session = residence.create(prompt(250), sampling=GREEDY)
    other = residence.create(prompt(250, 1))
    residence.tick()
    assert residence.cancel(session.id)
    run(residence)
    assert residence.info(session.id).evaluated_count in (64, 128), "more than the step that was under way"
    assert residence.info(other.id).evaluated_count == 250
    assert decode(residence, session.id) == lone_tokens(prompt(250), 6)


def test_cancelling_an_idle_session_changes_nothing(residence: Residence) -> None:
    session = residence.create([1])
    run(residence)
    assert not residence.cancel(session.id)


def test_closing_a_decoding_session_gives_its_stream_a_last_event(residence: Residence) -> None:
    session, listener, other = residence.create([1], sampling=GREEDY), Listener(), Listener()
    (fork,) = residence.fork(session.id)
    residence.decode(session.id, DecodeRequest(), listener)
    residence.decode(fork.id, DecodeRequest(max_tokens=50), other)
    for _ in range(5):
        residence.tick()
    residence.close(session.id)
    run(residence)
    assert listener.end is not None
    assert (listener.end.finish_reason, listener.end.error) == ("cancelled", "closed by its client")
    assert other.tokens == lone_tokens([1], 50)


def test_stop_ids_end_a_decode_and_are_kept(residence: Residence) -> None:
    alone = lone_tokens([1], 40)
    stop = alone[20]
    session, listener = residence.create([1], sampling=GREEDY), Listener()
    residence.decode(session.id, DecodeRequest(stop_tokens=frozenset({stop})), listener)
    run(residence)
    kept = alone[: alone.index(stop) + 1]
    assert listener.tokens == kept
    assert residence.tokens(session.id) == [1, *kept]
    assert listener.end is not None
    assert (listener.end.finish_reason, listener.end.stop) == ("stop", stop)
    assert decode(residence, session.id, 10) == lone_tokens([1, *kept], 10)


def test_a_draining_residence_takes_no_new_work_and_finishes_what_runs(residence: Residence) -> None:
    session, listener = residence.create([1], sampling=GREEDY), Listener()
    residence.decode(session.id, DecodeRequest(max_tokens=9), listener)
    residence.begin_drain()
    with pytest.raises(SessionError, match="draining"):
        residence.create([1])
    run(residence)
    assert listener.tokens == lone_tokens([1], 9)
    with pytest.raises(SessionError, match="draining"):
        residence.decode(session.id, DecodeRequest(), Listener())


def test_steps_are_counted(engine: CheckingEngine) -> None:
    reports: list[StepReport] = []
    residence = Residence(engine, context_tokens=256, sessions=4, observe_step=reports.append)
    session = residence.create(prompt(100))
    decode(residence, session.id, 5)
    assert [(r.prefill_rows, r.decode_rows, r.drawn_tokens) for r in reports] == [(100, 0, 1)] + [(0, 1, 1)] * 4
    totals = residence.stats().totals
    assert (totals.steps, totals.prefilled_tokens, totals.decoded_tokens) == (5, 100, 5)
    assert residence.stats().last_step == reports[-1]


def test_a_session_tells_how_long_nobody_has_used_it() -> None:
    now = [0.0]
    residence = Residence(
        CheckingEngine(page_count=24, slot_count=4), clock=lambda: now[0], context_tokens=256, sessions=4
    )
    session = residence.create(prompt(20), sampling=GREEDY).id

    def unused_after(seconds: float) -> float:
        now[0] += seconds
        return residence.info(session).unused_seconds

    assert unused_after(3) == 0, "it reads its prompt"
    run(residence)
    assert unused_after(5) == 5
    residence.tokens(session)
    assert unused_after(1) == 6, "to look at it is no use"
    listener = Listener()
    residence.decode(session, DecodeRequest(max_tokens=2), listener)
    assert unused_after(7) == 0, "it decodes"
    run(residence)
    assert unused_after(2) == 2
    residence.append(session, prompt(1))
    run(residence)
    assert unused_after(4) == 4
    residence.fork(session)
    assert unused_after(1) == 1


def test_a_session_keeps_its_tokens_in_few_bytes(residence: Residence) -> None:
    session = residence.create(prompt(120), sampling=GREEDY)
    run(residence)
    residence.append(session.id, prompt(40))
    decode(residence, session.id, 40)
    (fork,) = residence.fork(session.id)
    for each in (session, fork):
        assert len(each.tokens) == 200
        assert sys.getsizeof(each.tokens) < 100 + 5 * 200
