"""What is refused, why, and that it left no trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.errors import (
    ContextFull,
    InvalidRequest,
    LengthDiffers,
    NoRoom,
    SessionBusy,
    SessionError,
    SessionGone,
    UnknownSession,
)
from decodepool_worker.sessions.residence import Residence

from tests.sessions.checking_engine import (
    SAMPLED,
    VOCABULARY,
    CheckingEngine,
    Listener,
    decode,
    lone_tokens,
    prompt,
    run,
)

Request = Callable[[Residence, str], object]

REFUSALS = [
    pytest.param(
        lambda r, s: r.append(s, prompt(157)), ContextFull, "157 tokens .* holds 100 of 256", id="append too long"
    ),
    pytest.param(
        lambda r, s: r.append(s, prompt(157), length=99),
        LengthDiffers,
        "length: the session's is 100, not 99",
        id="append to another length",
    ),
    pytest.param(lambda r, s: r.append(s, []), InvalidRequest, "at least one", id="append nothing"),
    pytest.param(lambda r, s: r.append(s, [1, VOCABULARY, 2]), InvalidRequest, r"tokens\.1: 97", id="append a bad id"),
    pytest.param(lambda r, s: r.append(s, [-1]), InvalidRequest, r"tokens\.0: -1", id="append a negative id"),
    pytest.param(lambda r, s: r.create([]), InvalidRequest, "at least one", id="create of nothing"),
    pytest.param(lambda r, s: r.create(prompt(257)), ContextFull, "257 tokens .* holds 0 of 256", id="create too long"),
    pytest.param(
        lambda r, s: r.create([1, 2], context_tokens=1), ContextFull, "2 tokens", id="create beyond its own context"
    ),
    pytest.param(
        lambda r, s: r.create([1], context_tokens=257), InvalidRequest, "context_tokens", id="too large a context"
    ),
    pytest.param(lambda r, s: r.create([1], context_tokens=0), InvalidRequest, "context_tokens", id="no context"),
    pytest.param(lambda r, s: r.create([1], seed=2**64), InvalidRequest, "seed", id="seed too large"),
    pytest.param(lambda r, s: r.create([1], seed=-1), InvalidRequest, "seed", id="negative seed"),
    pytest.param(
        lambda r, s: r.decode(s, DecodeRequest(max_tokens=-1), Listener()),
        InvalidRequest,
        "max_tokens",
        id="negative max_tokens",
    ),
    pytest.param(
        lambda r, s: r.decode(s, DecodeRequest(stop_strings=("a", "")), Listener()),
        InvalidRequest,
        "stop",
        id="empty stop string",
    ),
    pytest.param(lambda r, s: r.fork(s, at=101), InvalidRequest, "at: 101", id="fork past the end"),
    pytest.param(lambda r, s: r.fork(s, at=0), InvalidRequest, "at: 0", id="fork of nothing"),
    pytest.param(lambda r, s: r.fork(s, n=0), InvalidRequest, "n: 0", id="no forks"),
    pytest.param(lambda r, s: r.fork(s, n=2, seeds=(1, -2)), InvalidRequest, "seed: -2", id="fork with a bad seed"),
    pytest.param(lambda r, s: r.fork(s, n=4), NoRoom, "4 more: 1 sessions .* of 4", id="more forks than room"),
    pytest.param(lambda r, s: r.info("s-none"), UnknownSession, "no session 's-none'", id="unknown"),
]


@pytest.mark.parametrize(("request_", "error", "message"), REFUSALS)
def test_a_refused_request_leaves_everything_as_it_was(
    residence: Residence, request_: Request, error: type[SessionError], message: str
) -> None:
    session = residence.create(prompt(100), seed=3, sampling=SAMPLED)
    run(residence)
    tokens, before = residence.tokens(session.id), residence.stats()
    with pytest.raises(error, match=message):
        request_(residence, session.id)
    assert residence.tokens(session.id) == tokens
    assert residence.stats().pages == before.pages
    assert residence.stats().sessions == before.sessions
    assert decode(residence, session.id, 20) == lone_tokens(prompt(100), 20, seed=3, sampling=SAMPLED)
    residence.close(session.id)
    assert residence.stats().pages.used == residence.stats().pages.reserved == 0


@pytest.mark.parametrize("verb", ["append", "decode"])
def test_a_decoding_session_is_busy(residence: Residence, verb: str) -> None:
    session = residence.create([1])
    residence.decode(session.id, DecodeRequest(), Listener())
    with pytest.raises(SessionBusy, match=f"decoding: cannot {verb}"):
        residence.append(session.id, [1]) if verb == "append" else residence.decode(
            session.id, DecodeRequest(), Listener()
        )


def test_a_closed_id_says_why_and_is_forgotten_after_a_while(engine: CheckingEngine) -> None:
    residence = Residence(engine, context_tokens=64, sessions=1, remembered_sessions=2)
    gone = [residence.create([1]).id]
    residence.close(gone[0], "tried out")
    with pytest.raises(SessionGone, match="gone: tried out"):
        residence.info(gone[0])
    for _ in range(2):
        gone.append(residence.create([1]).id)
        residence.close(gone[-1])
    with pytest.raises(UnknownSession):
        residence.info(gone[0])
    assert len(set(gone)) == 3


def test_an_unknown_id_with_this_workers_tag_is_one_of_another_life(engine: CheckingEngine) -> None:
    residence = Residence(engine, context_tokens=64, sessions=1, tag="0123456789")
    made = residence.create([1]).id
    assert made.startswith("s-0123456789-")
    assert residence.info(made).id == made
    with pytest.raises(SessionGone, match="started again"):
        residence.info(made[:-4] + "abcd")
    with pytest.raises(UnknownSession):
        residence.info(made.replace("0123456789", "9876543210"))
