"""Situations of sessions: they join, leave and fail; they are forked, remembered, replayed; they draw with a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from decodepool_worker.engine.rows import PAGE_TOKENS, Sampling
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.session import Session, SessionState
from decodepool_worker.verify.lab import BrokenGate, Lab, Listener, append_one_by_one, begin_decode, drive

GREEDY = Sampling(temperature=0.0)
PENALISED = Sampling(temperature=1.3, top_k=200, top_p=0.98, min_p=0.001, repetition_penalty=1.1, presence_penalty=0.2)
PLAIN = replace(PENALISED, repetition_penalty=1.0, presence_penalty=0.0)
"""What a GPU draws itself."""
SEED = 0x9E3779B97F4A7C15
DRAWS = 24
CALLS = {"in one call": (DRAWS,), "in three calls": (5, 1, DRAWS - 6), "in single draws": (1,) * DRAWS}
FORKS_AT = (PAGE_TOKENS - 1, PAGE_TOKENS, PAGE_TOKENS + 1, 100, 2 * PAGE_TOKENS)


def joining_leaving_failing(lab: Lab) -> None:
    """Sessions come while others decode, leave half way, one fails; those that stay are then replayed alone."""
    residence = lab.residence()
    long, middle, short = lab.streams
    stays = [_decoding(residence, long[: 2 * PAGE_TOKENS - 5])]
    residence.tick()
    leaves, fails = _decoding(residence, middle), _decoding(residence, short)
    residence.tick()
    stays.append(_decoding(residence, middle[: PAGE_TOKENS - 3]))
    lab.witness.doom(fails.place.slot)
    residence.tick()
    if fails.state is not SessionState.FAILED:
        raise BrokenGate(f"the session that was to fail is {fails.state}")
    stays.append(_decoding(residence, long[:7]))
    residence.tick()
    residence.close(leaves.id)
    stays.append(_decoding(residence, long))
    drive(residence)
    for session in stays:
        if session.state is not SessionState.IDLE:
            raise BrokenGate(f"a session that was to stay is {session.state}")
        replay_alone(lab, session.tokens, DRAWS)


def replay_alone(lab: Lab, tokens: Sequence[int], count: int) -> None:
    """Compute the last `count` rows of a token list in an empty residence, one a step."""
    residence = lab.residence(1)
    session = residence.create(tokens[:-count])
    drive(residence)
    append_one_by_one(residence, session, tokens[-count:])


def forks(lab: Lab) -> None:
    """Forks at and around the edges of pages, in pairs, beside a parent that goes on; one needs no row to draw."""
    long = lab.streams[0]
    for at in FORKS_AT:
        residence = lab.residence()
        parent = residence.create(long[: at + 1])
        drive(residence)
        children = residence.fork(parent.id, at, 2)
        append_one_by_one(residence, children[0], long[at : at + 3])
        append_one_by_one(residence, parent, long[at + 1 : at + 3])
        append_one_by_one(residence, children[1], long[at : at + 3])
        twin = residence.fork(parent.id)[0]
        drawn = [begin_decode(residence, session, DecodeRequest(2, GREEDY)) for session in (parent, twin)]
        drive(residence)
        lab.witness.compare_tokens(drawn[0].tokens, drawn[1].tokens, f"fork at {at}")


def prefix_reuse(lab: Lab) -> None:
    """Pages of a closed session, and of a live one, serve later sessions with the same beginning."""
    long = lab.streams[0]
    residence = lab.residence()
    first = residence.create(long[:-2])
    drive(residence)
    residence.close(first.id)
    for length in (len(long) - 3, 2 * PAGE_TOKENS + 1, PAGE_TOKENS + 1):
        session = residence.create(long[:length])
        if session.reused_tokens != (length - 1) // PAGE_TOKENS * PAGE_TOKENS:
            raise BrokenGate(f"{session.reused_tokens} tokens were reused of {length}")
        drive(residence)
        append_one_by_one(residence, session, long[length : length + 3])


def close_and_replay(lab: Lab) -> None:
    """A session decodes in company and is closed; its tokens, given as a prompt, go on as it did."""
    residence = lab.residence()
    prompts = [lab.streams[0][: 2 * PAGE_TOKENS - 8], lab.streams[1], lab.streams[2]]
    sessions = [_decoding(residence, prompt) for prompt in prompts]
    drive(residence)
    tokens = [list(session.tokens) for session in sessions]
    for session in sessions:
        residence.close(session.id)
    fresh = lab.residence()
    for index, whole in enumerate(tokens):
        cut = len(whole) - DRAWS // 2
        again = _decoding(fresh, whole[:cut], DRAWS // 2)
        drive(fresh)
        lab.witness.compare_tokens(whole[cut:], again.tokens[cut:], f"replay {index}")


def seeded_draws(lab: Lab) -> None:
    """The same seed draws the same tokens alone, in company, cut into calls, cancelled and resumed; with penalties
    under watch, without as the engine serves.
    """
    _draws_alike(lab, PENALISED, lab.residence)
    _draws_alike(lab, PLAIN, lab.unwatched)


def _draws_alike(lab: Lab, sampling: Sampling, residence_of: Callable[[], Residence]) -> None:
    """Compare with what is drawn alone under watch: each step read before the next, and with log-probabilities, so that
    no device draws it.
    """
    prompt = lab.streams[1][: PAGE_TOKENS - 10]
    alone = _seeded(lab.residence(), prompt, sampling, (DRAWS,), top_logprobs=0)
    if len(set(alone)) < DRAWS // 4:
        raise BrokenGate(f"{DRAWS} draws gave {len(set(alone))} different tokens")
    for name, counts in CALLS.items():
        lab.witness.compare_tokens(alone, _seeded(residence_of(), prompt, sampling, counts), name)
    residence = residence_of()
    for length in (1, 20, 40, 64, 100):
        _decoding(residence, lab.streams[0][:length], 2 * DRAWS)
    lab.witness.compare_tokens(alone, _seeded(residence, prompt, sampling, (7, DRAWS - 7)), "in company")
    lab.witness.compare_tokens(alone, _resumed(residence_of(), prompt, sampling), "resumed")


def _decoding(residence: Residence, prompt: list[int], count: int = DRAWS) -> Session:
    session = residence.create(prompt)
    begin_decode(residence, session, DecodeRequest(count, GREEDY))
    return session


def _seeded(
    residence: Residence,
    prompt: list[int],
    sampling: Sampling,
    counts: tuple[int, ...],
    top_logprobs: int | None = None,
) -> list[int]:
    session = residence.create(prompt, seed=SEED, sampling=sampling)
    drawn: list[int] = []
    for count in counts:
        listener = begin_decode(residence, session, DecodeRequest(count, top_logprobs=top_logprobs))
        drive(residence)
        drawn += listener.tokens
    return drawn


def _resumed(residence: Residence, prompt: list[int], sampling: Sampling) -> list[int]:
    session = residence.create(prompt, seed=SEED, sampling=sampling)
    listener = begin_decode(residence, session, DecodeRequest(DRAWS))
    drive(residence, until=lambda: len(listener.tokens) >= DRAWS // 3)
    residence.cancel(session.id)
    later = Listener()
    residence.resume(session.id, len(session.tokens) - 1, later)
    drive(residence)
    return listener.tokens + later.tokens
