"""Forks and prefixes: pages that several sessions hold."""

from __future__ import annotations

import pytest
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.pages import PageUse
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.session import SessionState

from tests.sessions.checking_engine import GREEDY, SAMPLED, CheckingEngine, Listener, decode, lone_tokens, prompt, run


@pytest.mark.parametrize("at", [1, 2, 63, 64, 65, 127, 128, 129, 139, 140, None])
@pytest.mark.parametrize("decoded", [0, 3])
def test_a_fork_goes_on_like_a_session_that_was_given_its_tokens(
    residence: Residence, at: int | None, decoded: int
) -> None:
    parent = residence.create(prompt(140), seed=8, sampling=SAMPLED)
    run(residence)
    if decoded:
        decode(residence, parent.id, decoded)
    kept = residence.tokens(parent.id)[:at]
    (fork,) = residence.fork(parent.id, at=at)
    assert (list(fork.tokens), fork.seed, fork.parent) == (kept, 8, parent.id)
    assert decode(residence, fork.id, 20) == lone_tokens(kept, 20, seed=8, sampling=SAMPLED)
    whole = prompt(140) + lone_tokens(prompt(140), decoded + 10, seed=8, sampling=SAMPLED)
    decode(residence, parent.id, 10)
    assert residence.tokens(parent.id) == whole, "the fork wrote into its parent's pages"


def test_a_fork_at_the_end_needs_no_row_to_draw(residence: Residence, engine: CheckingEngine) -> None:
    parent = residence.create(prompt(140), sampling=GREEDY)
    run(residence)
    (fork,) = residence.fork(parent.id)
    engine.steps.clear()
    assert decode(residence, fork.id, 1) == lone_tokens(prompt(140), 1)
    assert engine.steps == [[(140, 0)]]


@pytest.mark.parametrize("at", [1, 64, 100, 199, 200])
@pytest.mark.parametrize("ticks", [0, 1, 2, 5])
def test_a_session_can_be_forked_whatever_it_is_doing(residence: Residence, at: int, ticks: int) -> None:
    parent, listener = residence.create(prompt(200), sampling=GREEDY), Listener()
    residence.decode(parent.id, DecodeRequest(max_tokens=30), listener)
    for _ in range(ticks):
        residence.tick()
    (fork,) = residence.fork(parent.id, at=at)
    assert decode(residence, fork.id, 20) == lone_tokens(prompt(200)[:at], 20)
    assert listener.tokens == lone_tokens(prompt(200), 30)


def test_a_fork_of_a_session_at_its_prompt_evaluates_the_rest_itself(residence: Residence) -> None:
    parent = residence.create(prompt(200))
    residence.tick()
    (fork,) = residence.fork(parent.id)
    residence.close(parent.id)
    assert (fork.state, fork.evaluated_count) == (SessionState.PREFILLING, 128)
    run(residence)
    assert (fork.state, fork.evaluated_count) == (SessionState.IDLE, 200)


def test_forks_share_full_pages_and_count_them_once(residence: Residence) -> None:
    parent = residence.create(prompt(140))
    run(residence)
    residence.fork(parent.id, n=3)
    pages = residence.stats().pages
    assert (pages.used, pages.reserved) == (2 + 4, 16)
    assert residence.page_uses().count(PageUse.SHARED) == 2


def test_forks_with_seeds_of_their_own_differ(residence: Residence) -> None:
    parent = residence.create([1], seed=1, sampling=SAMPLED)
    forks = residence.fork(parent.id, n=3, seeds=(None, 2, 3))
    streams = [decode(residence, fork.id, 20) for fork in forks]
    assert streams == [lone_tokens([1], 20, seed=seed, sampling=SAMPLED) for seed in (1, 2, 3)]


def test_a_fork_outlives_its_parent(residence: Residence) -> None:
    parent = residence.create(prompt(140), sampling=GREEDY)
    run(residence)
    (fork,) = residence.fork(parent.id)
    residence.close(parent.id)
    for variant in range(1, 4):
        residence.create(prompt(256, variant))
    run(residence)
    assert decode(residence, fork.id, 30) == lone_tokens(prompt(140), 30)


@pytest.mark.parametrize(("length", "reused"), [(64, 0), (65, 64), (128, 64), (129, 128), (200, 128)])
def test_full_pages_of_closed_sessions_are_reused(
    residence: Residence, engine: CheckingEngine, length: int, reused: int
) -> None:
    residence.create(prompt(140))
    run(residence)
    residence.close(residence.infos()[0].id)
    engine.steps.clear()
    session = residence.create(prompt(length), sampling=GREEDY)
    assert (session.reused_tokens, session.evaluated_count) == (reused, reused)
    assert decode(residence, session.id, 20) == lone_tokens(prompt(length), 20)
    assert engine.steps[0] == [(reused, min(length - reused, 128))]


def test_drawn_tokens_are_reused_as_prompts(residence: Residence) -> None:
    first = residence.create(prompt(60), sampling=GREEDY)
    decode(residence, first.id, 80)
    session = residence.create([*residence.tokens(first.id), 5])
    assert session.reused_tokens == 128


def test_live_sessions_share_their_prefixes_too(residence: Residence) -> None:
    first = residence.create(prompt(140), sampling=GREEDY)
    run(residence)
    second = residence.create([*prompt(128), 9, 9], sampling=GREEDY)
    assert second.reused_tokens == 128
    assert decode(residence, second.id, 20) == lone_tokens([*prompt(128), 9, 9], 20)
    assert decode(residence, first.id, 20) == lone_tokens(prompt(140), 20)


def test_pages_kept_for_reuse_give_way_to_sessions(residence: Residence) -> None:
    for variant in range(6):
        session = residence.create(prompt(256, variant))
        run(residence)
        residence.close(session.id)
    assert residence.stats().pages.kept == 24, "every page is kept for reuse"
    sessions = [residence.create(prompt(250, 10 + i), sampling=GREEDY) for i in range(4)]
    assert [decode(residence, s.id, 6) for s in sessions] == [lone_tokens(prompt(250, 10 + i), 6) for i in range(4)]
    assert residence.stats().pages.kept == 8
