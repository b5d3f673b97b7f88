"""Sessions coming and going: admission, the changes of state that also move memory, and who is here."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from decodepool_worker.engine.rows import Engine, Sampling
from decodepool_worker.sessions.errors import NoRoom
from decodepool_worker.sessions.events import FinishReason
from decodepool_worker.sessions.memory import SessionMemory
from decodepool_worker.sessions.registry import Registry
from decodepool_worker.sessions.session import Session, SessionEvent
from decodepool_worker.sessions.stats import Totals


class Household:
    """The live sessions, their memory, and the counters of both."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float],
        *,
        slots: int,
        reserve_pages: int,
        remembered_sessions: int,
        tag: str | None,
    ) -> None:
        self.capacity = slots
        self.memory = SessionMemory(engine, slots, reserve_pages)
        self.sessions = Registry(remembered_sessions, tag)
        self.totals = Totals()
        self._clock = clock

    def require_room(self, context_tokens: int, count: int) -> None:
        """Raise `NoRoom` unless `count` sessions of this context can be admitted."""
        if not self.memory.can_admit(context_tokens, count):
            self.totals.sessions_refused += count
            raise NoRoom(len(self.sessions), self.capacity, count)

    def admit(self, tokens: Sequence[int], context_tokens: int, seed: int, sampling: Sampling) -> Session:
        """Take in an idle session, its whole context reserved. Ask `require_room` first."""
        now = self._clock()
        place = self.memory.admit(context_tokens)
        name = self.sessions.new_id()
        session = Session(name, array("I", tokens), context_tokens, seed, sampling, place, created_at=now, used_at=now)
        self.sessions.add(session)
        self.totals.sessions_created += 1
        return session

    def advance(self, session: Session, event: SessionEvent) -> None:
        """Change a session's state because somebody used it."""
        session.advance(event)
        self.use(session)

    def use(self, session: Session) -> None:
        """Remember that somebody used a session just now."""
        session.used_at = self._clock()

    def stop(self, session: Session, reason: FinishReason, *, error: str | None = None) -> None:
        """Make a session idle, its stream ended."""
        if session.running_decode is not None:
            session.running_decode.finish(reason, error=error)
        self.advance(session, SessionEvent.STOP)

    def close(self, session: Session, reason: str) -> None:
        """Let a session go, its stream ended, everything taken back."""
        self.stop(session, "cancelled", error=reason)
        session.advance(SessionEvent.CLOSE)
        self.totals.sessions_closed += 1
        self._forget(session, reason)

    def fail(self, session: Session, message: str) -> None:
        """End a session that cannot go on, everything taken back."""
        if session.running_decode is not None:
            session.running_decode.abort(message)
        session.advance(SessionEvent.FAIL)
        self.totals.sessions_failed += 1
        self._forget(session, message)

    def fail_all(self, message: str) -> None:
        """End every session."""
        for session in self.sessions:
            self.fail(session, message)

    def _forget(self, session: Session, reason: str) -> None:
        self.memory.release(session.place)
        self.sessions.remove(session, reason)
