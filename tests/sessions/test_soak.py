"""Everything at once, in any order, and every stream still that of a lone session."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from functools import partial

import pytest
from decodepool_worker.engine.rows import Sampling
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.errors import NoRoom
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.session import SessionState

from tests.sessions.checking_engine import GREEDY, NAN_TOKEN, BesideEngine, CheckingEngine, Listener, lone_tokens, run

CONTEXT = 300
SAMPLINGS = (
    GREEDY,
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=1),
    Sampling(temperature=1.3, top_p=0.9, repetition_penalty=1.2),
    Sampling(temperature=0.0, logit_bias=((3, 9.0), (4, -9.0))),
)


@dataclass
class Guest:
    """What a session must be, without having asked it."""

    id: str
    seed: int
    sampling: Sampling
    tokens: list[int]
    listener: Listener | None = None
    request: DecodeRequest = field(default_factory=DecodeRequest)


class Crowd:
    """Clients who do whatever they like."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        kind = self.random.choice((CheckingEngine, BesideEngine, partial(BesideEngine, is_quick=True)))
        self.engine = kind(page_count=36, slot_count=6, max_step_rows=self.random.choice((1, 3, 64, 200)))
        chunk = self.random.choice((1, 16, 64))
        self.residence = Residence(self.engine, context_tokens=CONTEXT, sessions=6, prefill_chunk_rows=chunk)
        self.guests: list[Guest] = []
        self.created = self.checked = 0

    def act(self) -> None:
        action = self.random.choices(
            (
                self.create,
                self.append,
                self.decode,
                self.tick,
                self.cancel,
                self.resume,
                self.fork,
                self.close,
                self.poison,
            ),
            (10, 6, 12, 60, 3, 4, 4, 4, 1),
        )[0]
        action()
        self.settle()

    def some(self, *states: SessionState) -> Guest | None:
        fitting = [guest for guest in self.guests if self.residence.info(guest.id).state in states]
        return self.random.choice(fitting) if fitting else None

    def some_tokens(self, most: int) -> list[int]:
        start = self.random.randrange(3)  # few beginnings, so that prefixes are shared
        return [(start + 5 * i) % NAN_TOKEN for i in range(self.random.randint(1, max(most, 1)))]

    def create(self) -> None:
        tokens, seed, sampling = self.some_tokens(200), self.random.getrandbits(64), self.random.choice(SAMPLINGS)
        try:
            session = self.residence.create(tokens, seed=seed, sampling=sampling)
        except NoRoom:
            assert len(self.guests) == 6
        else:
            self.guests.append(Guest(session.id, seed, sampling, tokens))
            self.created += 1

    def append(self) -> None:
        guest = self.some(SessionState.IDLE, SessionState.PREFILLING)
        if guest is not None and len(guest.tokens) < CONTEXT:
            tokens = self.some_tokens(min(100, CONTEXT - len(guest.tokens)))
            self.residence.append(guest.id, tokens)
            guest.tokens += tokens

    def decode(self) -> None:
        guest = self.some(SessionState.IDLE, SessionState.PREFILLING)
        if guest is not None:
            guest.request = DecodeRequest(
                max_tokens=self.random.choice((None, 0, 1, 7, 40)),
                stop_tokens=frozenset(self.random.sample(range(NAN_TOKEN), self.random.choice((0, 2)))),
            )
            guest.listener = Listener()
            self.residence.decode(guest.id, guest.request, guest.listener)

    def tick(self) -> None:
        self.residence.tick()

    def cancel(self) -> None:
        guest = self.some(SessionState.DECODING, SessionState.PREFILLING)
        if guest is not None:
            self.residence.cancel(guest.id)

    def resume(self) -> None:
        guest = self.some(SessionState.DECODING)
        if guest is not None and guest.listener is not None:
            old, guest.listener = guest.listener, Listener()
            kept = old.events[: self.random.randint(0, len(old.events))]
            self.residence.leave(guest.id, old)
            guest.listener.events += kept
            self.residence.resume(guest.id, len(guest.tokens) + len(kept) - 1, guest.listener)

    def fork(self) -> None:
        guest = self.some(*SessionState)
        if guest is not None and len(self.guests) < 6:
            known = self.residence.tokens(guest.id)
            at = self.random.choice((len(known), self.random.randint(1, len(known))))
            (made,) = self.residence.fork(guest.id, at=at)
            self.guests.append(Guest(made.id, guest.seed, guest.sampling, known[:at]))
            self.created += 1

    def close(self) -> None:
        guest = self.some(*SessionState)
        if guest is not None:
            self.residence.close(guest.id)
            self.leave(guest)

    def poison(self) -> None:
        """Make a session fail while it decodes."""
        guest = self.some(SessionState.IDLE)
        if guest is not None and len(guest.tokens) < CONTEXT - 1:
            self.residence.append(guest.id, [NAN_TOKEN])
            guest.listener = Listener()
            self.residence.decode(guest.id, DecodeRequest(), guest.listener)
            run(self.residence)
            assert guest.listener.end is not None
            assert (guest.listener.end.finish_reason, guest.listener.tokens) == ("error", [])
            self.guests.remove(guest)

    def settle(self) -> None:
        """Check every stream that has ended."""
        for guest in self.guests:
            if guest.listener is not None and guest.listener.end is not None:
                self.check(guest, guest.listener)
                guest.listener = None

    def check(self, guest: Guest, listener: Listener) -> None:
        drawn, end, request = listener.tokens, listener.end, guest.request
        assert end is not None
        expected = lone_tokens(
            guest.tokens, len(drawn), seed=guest.seed, sampling=guest.sampling, stops=request.stop_tokens
        )
        assert drawn == expected
        assert [event.position for event in listener.events] == list(range(len(guest.tokens), end.length))
        guest.tokens += drawn
        asked = CONTEXT if request.max_tokens is None else request.max_tokens
        if end.finish_reason == "length":
            assert len(drawn) == asked or len(guest.tokens) == CONTEXT
        elif end.finish_reason == "stop":
            assert drawn[-1] == end.stop
        self.checked += len(drawn)

    def leave(self, guest: Guest) -> None:
        if guest.listener is not None:
            self.check(guest, guest.listener)
        self.guests.remove(guest)

    def go_home(self) -> None:
        run(self.residence, 100_000)
        self.settle()
        for guest in list(self.guests):
            assert self.residence.tokens(guest.id) == guest.tokens
            self.residence.close(guest.id)
            self.leave(guest)
        pages = self.residence.stats().pages
        assert (pages.used, pages.reserved, pages.kept + pages.free) == (0, 0, self.engine.page_count)
        assert len(set(self.residence.page_uses())) <= 2
        assert self.residence.stats().sessions == dict.fromkeys(self.residence.stats().sessions, 0)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_clients_do_every_stream_is_that_of_a_lone_session(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(1500):
        crowd.act()
    crowd.go_home()
    assert crowd.created > 40
    assert crowd.checked > 300


@pytest.mark.slow
def test_three_thousand_sessions_lose_nothing() -> None:
    crowds, times = Crowd(99), []
    done, began = 0, time.process_time()
    while crowds.created < 3000:
        crowds.act()
        if crowds.created >= done + 500:
            crowds.go_home()
            done = crowds.created
            times.append(time.process_time() - began)
            began = time.process_time()
    crowds.go_home()
    assert times[-1] < 2 * min(times), f"the last 500 took {times[-1]:.1f} s, the quickest {min(times):.1f} s"
