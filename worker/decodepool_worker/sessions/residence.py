"""Resident sessions on one engine: the pure core. One thread, no I/O, time through `clock`.

The laws kept here:

- a session is admitted only with its whole context reserved, and is never preempted or evicted in silence;
- a refused request leaves everything as it was: every check comes before the first change;
- a fault of one session (logits that are not finite) ends that session, a fault of the engine ends all, and nobody
  gets made-up tokens.

Verbs return at once; `tick` does the work, one engine step at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from decodepool_worker.engine.rows import PAGE_TOKENS, Engine, Sampling
from decodepool_worker.sessions.checks import (
    require_context,
    require_fork,
    require_length,
    require_request,
    require_tokens,
    seed_or_new,
)
from decodepool_worker.sessions.decodes import Decode, DecodeRequest, DecodeText, DetokenizerFactory, no_text
from decodepool_worker.sessions.errors import Draining, EngineFailed, NothingToResume
from decodepool_worker.sessions.events import EndEvent, Sink, TokenEvent
from decodepool_worker.sessions.household import Household
from decodepool_worker.sessions.pages import PageUse, pages_for
from decodepool_worker.sessions.session import Session, SessionEvent, SessionInfo, SessionState
from decodepool_worker.sessions.stats import LIVE_STATES, Stats, StepObserver
from decodepool_worker.sessions.stepper import Stepper

__all__ = ["DecodeRequest", "EndEvent", "Residence", "TokenEvent"]

DEFAULT_SAMPLING = Sampling()


class Residence:
    """Sessions resident on an engine.

    `context_tokens` is the most, and the default, that a session may have; `sessions` of that size always fit.
    Smaller ones reserve less, but there are never more than `sessions` at once. The engine's pages beyond the reserve
    serve prefix reuse alone. `tag` names this worker in its sessions' ids.
    """

    def __init__(
        self,
        engine: Engine,
        detokenizer_factory: DetokenizerFactory = no_text,
        clock: Callable[[], float] = time.monotonic,
        *,
        context_tokens: int,
        sessions: int,
        prefill_chunk_rows: int = PAGE_TOKENS,
        remembered_sessions: int = 10_000,
        observe_step: StepObserver | None = None,
        tag: str | None = None,
    ) -> None:
        self.context_tokens = context_tokens
        self.draining = False
        self._vocabulary_size = engine.vocabulary_size
        self._detokenizer_factory = detokenizer_factory
        self._clock = clock
        self._household = Household(
            engine,
            clock,
            slots=sessions,
            reserve_pages=sessions * pages_for(context_tokens, PAGE_TOKENS),
            remembered_sessions=remembered_sessions,
            tag=tag,
        )
        self._stepper = Stepper(engine, self._household, clock, prefill_chunk_rows, observe_step)

    @property
    def fault(self) -> str | None:
        """Why nothing is served any more; None while all is well."""
        return self._stepper.fault

    def tick(self) -> bool:
        """Bring one engine step to its end if there is work; False if there is none. Where steps run beside this
        process the next one is then under way, and sinks hear of a token that ends nothing while it runs.
        """
        return self._stepper.tick()

    def when_told(self, callback: Callable[[], None]) -> None:
        """Have a callback called in the middle of a tick, when what the step before drew has been told."""
        self._stepper.on_told = callback

    # Verbs: what a client may ask for.

    def create(
        self,
        tokens: Sequence[int],
        *,
        context_tokens: int | None = None,
        seed: int | None = None,
        sampling: Sampling = DEFAULT_SAMPLING,
    ) -> Session:
        """Admit a session and begin to evaluate its tokens, at least one. Without a seed it is given one."""
        self._require_open()
        context_tokens = require_context(context_tokens, self.context_tokens)
        require_tokens(tokens, self._vocabulary_size, 0, context_tokens)
        seed = seed_or_new(seed)
        self._household.require_room(context_tokens, 1)
        session = self._household.admit(tokens, context_tokens, seed, sampling)
        session.reused_tokens = session.evaluated_count = self._household.memory.reuse(session.place, session.tokens)
        self._household.totals.reused_tokens += session.reused_tokens
        session.advance(SessionEvent.APPEND)
        return session

    def append(self, session_id: str, tokens: Sequence[int], length: int | None = None) -> Session:
        """Add tokens, at least one, and begin to evaluate them; earlier ones may still be under way. Where a `length`
        is given, the session must hold that many before.
        """
        self._require_open()
        session = self._household.sessions.find(session_id)
        session.require(SessionEvent.APPEND)
        require_length(length, len(session.tokens))
        require_tokens(tokens, self._vocabulary_size, len(session.tokens), session.context_tokens)
        session.tokens.extend(tokens)
        session.decode = None  # its tokens are no longer the session's last: it cannot be resumed
        self._household.advance(session, SessionEvent.APPEND)
        return session

    def decode(self, session_id: str, request: DecodeRequest, sink: Sink) -> Decode:
        """Draw tokens until a stop, `max_tokens` or the end of the context; a full session draws none."""
        self._require_open()
        session = self._household.sessions.find(session_id)
        session.require(SessionEvent.DECODE)
        require_request(request)
        sampling = session.sampling if request.sampling is None else request.sampling
        length, context = len(session.tokens), session.context_tokens
        end = context if request.max_tokens is None else min(context, length + request.max_tokens)
        session.decode = Decode(request, sampling, length, end, sink, self._text(session, length, request))
        self._begin(session, session.decode)
        return session.decode

    def resume(self, session_id: str, after: int, sink: Sink) -> Decode:
        """Give `sink` every event of the last decode after position `after`. If it was cancelled, it goes on.

        A stream that still listens to the decode is ended. Allowed while draining: it is no new work.
        """
        self._require_alive()
        session = self._household.sessions.find(session_id)
        decode = session.decode
        if decode is None or not decode.start - 1 <= after < decode.length:
            known = "it has no decode" if decode is None else f"its decode drew {decode.start} to {decode.length - 1}"
            raise NothingToResume(f"session {session_id!r} cannot resume after position {after}: {known}")
        decode.replay(after, sink)
        if decode.end is not None and decode.end.finish_reason == "cancelled":
            decode.reopen(self._text(session, decode.start, decode.request))
            self._begin(session, decode)
        elif decode.end is not None:
            sink(decode.end)
        return decode

    def cancel(self, session_id: str) -> bool:
        """Stop what the session is doing before the next step; False if it was idle.

        It stays usable. Tokens that are not evaluated by then wait for the next append or decode.
        """
        session = self._household.sessions.find(session_id)
        was_busy = session.state is not SessionState.IDLE
        self._household.stop(session, "cancelled")
        return was_busy

    def leave(self, session_id: str, sink: Sink) -> None:
        """Cancel a decode whose listener has gone, unless it has ended or another listens by now. Never fails."""
        session = self._household.sessions.get(session_id)
        if session is not None and session.decode is not None and session.decode.sink == sink:
            self._household.stop(session, "cancelled")

    def close(self, session_id: str, reason: str = "closed by its client") -> None:
        """End the session and take everything back; its stream, if any, gets a last event."""
        self._household.close(self._household.sessions.find(session_id), reason)

    def discard(self, session_id: str, reason: str) -> None:
        """Close a session that nobody will ask for, unless it is gone already. Never fails."""
        if self._household.sessions.get(session_id) is not None:
            self.close(session_id, reason)

    def fork(
        self, session_id: str, at: int | None = None, n: int = 1, seeds: Sequence[int | None] | None = None
    ) -> list[Session]:
        """Admit `n` sessions, or none, that begin with the first `at` tokens (None: all). Allowed in every live state.

        A fork has its parent's seed, and so draws its parent's tokens, unless `seeds`, one for each, gives it another.
        """
        self._require_open()
        parent = self._household.sessions.find(session_id)
        seeds = [None] * n if seeds is None else seeds
        at = require_fork(at, len(parent.tokens), seeds)
        chosen = [parent.seed if seed is None else seed_or_new(seed) for seed in seeds]
        self._household.require_room(parent.context_tokens, len(chosen))
        self._household.use(parent)
        try:
            return [self._fork(parent, at, seed) for seed in chosen]
        except Exception as error:  # the engine's: everything else was checked
            self.fail(error)
            raise EngineFailed(str(self.fault)) from error

    def begin_drain(self) -> None:
        """Refuse new work from now on; streams under way go on."""
        self.draining = True

    def end_streams(self, error: str) -> None:
        """End every stream with an error event."""
        for session in self._household.sessions:
            if session.running_decode is not None:
                self._household.stop(session, "error", error=error)

    def fail(self, error: Exception) -> None:
        """End every session with an error, and serve nothing from here on: the engine cannot be trusted."""
        self._stepper.fail(error)

    # Questions.

    def info(self, session_id: str) -> SessionInfo:
        """Describe a session."""
        return SessionInfo.of(self._household.sessions.find(session_id), self._clock())

    def infos(self) -> list[SessionInfo]:
        """Describe every live session, oldest first."""
        now = self._clock()
        return [SessionInfo.of(session, now) for session in self._household.sessions]

    def tokens(self, session_id: str) -> list[int]:
        """Copy a session's tokens."""
        return list(self._household.sessions.find(session_id).tokens)

    def page_uses(self) -> list[PageUse]:
        """Return the use of each physical page."""
        return self._household.memory.page_uses()

    def stats(self) -> Stats:
        """Count everything."""
        sessions = dict.fromkeys(LIVE_STATES, 0)
        for session in self._household.sessions:
            sessions[session.state] += 1
        return Stats(
            sessions=sessions,
            session_capacity=self._household.capacity,
            pages=self._household.memory.counts(),
            totals=self._household.totals.copy(),
            last_step=self._stepper.last_step,
            draining=self.draining,
            fault=self.fault,
        )

    # What the verbs share.

    def _require_alive(self) -> None:
        if self.fault is not None:
            raise EngineFailed(self.fault)

    def _require_open(self) -> None:
        self._require_alive()
        if self.draining:
            raise Draining("the worker is draining: it takes no new work")

    def _fork(self, parent: Session, at: int, seed: int) -> Session:
        """Admit a copy. Its last token is evaluated again unless it is the parent's last: no other logits are kept."""
        has_logits = at == parent.evaluated_count == len(parent.tokens)
        evaluated = at if has_logits else min(at - 1, parent.evaluated_count)
        session = self._household.admit(parent.tokens[:at], parent.context_tokens, seed, parent.sampling)
        session.parent = parent.id
        self._household.memory.fork(parent.place, session.place, evaluated, with_logits=has_logits)
        session.evaluated_count = evaluated
        if session.pending_count > 1:
            session.advance(SessionEvent.APPEND)
        return session

    def _text(self, session: Session, start: int, request: DecodeRequest) -> DecodeText:
        return DecodeText(self._detokenizer_factory(session.tokens[start - 1]), request.stop_strings)

    def _begin(self, session: Session, decode: Decode) -> None:
        self._household.advance(session, SessionEvent.DECODE)
        if decode.length >= decode.end_length:
            decode.finish("length")
            self._household.advance(session, SessionEvent.STOP)
