"""A session and its states.

A session is its token list. `evaluated_count` of those tokens are in its pages; the resident logits are those after
the last token exactly when `evaluated_count == len(tokens)`. A drawn token is pending, in the list but not evaluated,
until the next step needs it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from decodepool_worker.engine.rows import Sampling
from decodepool_worker.sessions.errors import SessionBusy

if TYPE_CHECKING:
    from decodepool_worker.sessions.decodes import Decode
    from decodepool_worker.sessions.memory import Place


class SessionState(StrEnum):
    """What a session is doing."""

    PREFILLING = "prefilling"  # evaluating given tokens
    IDLE = "idle"  # nothing to do
    DECODING = "decoding"  # a decode owns it, be it still at the tokens before
    CLOSED = "closed"
    FAILED = "failed"


class SessionEvent(StrEnum):
    """What changes a session's state."""

    APPEND = "append"
    FILLED = "filled"  # every given token is evaluated
    DECODE = "decode"
    STOP = "stop"  # the decode ended, or was cancelled; a cancelled prefill rests until somebody needs it
    CLOSE = "close"
    FAIL = "fail"


TRANSITIONS = MappingProxyType(
    {
        (SessionState.PREFILLING, SessionEvent.APPEND): SessionState.PREFILLING,
        (SessionState.PREFILLING, SessionEvent.FILLED): SessionState.IDLE,
        (SessionState.PREFILLING, SessionEvent.DECODE): SessionState.DECODING,
        (SessionState.PREFILLING, SessionEvent.STOP): SessionState.IDLE,
        (SessionState.PREFILLING, SessionEvent.CLOSE): SessionState.CLOSED,
        (SessionState.PREFILLING, SessionEvent.FAIL): SessionState.FAILED,
        (SessionState.IDLE, SessionEvent.APPEND): SessionState.PREFILLING,
        (SessionState.IDLE, SessionEvent.DECODE): SessionState.DECODING,
        (SessionState.IDLE, SessionEvent.STOP): SessionState.IDLE,
        (SessionState.IDLE, SessionEvent.CLOSE): SessionState.CLOSED,
        (SessionState.IDLE, SessionEvent.FAIL): SessionState.FAILED,
        (SessionState.DECODING, SessionEvent.STOP): SessionState.IDLE,
        (SessionState.DECODING, SessionEvent.CLOSE): SessionState.CLOSED,
        (SessionState.DECODING, SessionEvent.FAIL): SessionState.FAILED,
    }
)
"""Every change there is. CLOSED and FAILED are final; what is missing from the table is refused with `SessionBusy`."""


@dataclass(slots=True, eq=False)
class Session:
    """One resident session. Only the thread that owns the residence may touch it."""

    id: str
    tokens: array[int]
    context_tokens: int
    seed: int
    sampling: Sampling
    place: Place
    created_at: float
    used_at: float
    parent: str | None = None
    reused_tokens: int = 0
    state: SessionState = SessionState.IDLE
    evaluated_count: int = 0
    served_step: int = 0
    decode: Decode | None = field(default=None, repr=False)  # the running one, or the last, kept to be resumed

    @property
    def pending_count(self) -> int:
        """Tokens in the list that are not evaluated."""
        return len(self.tokens) - self.evaluated_count

    @property
    def running_decode(self) -> Decode | None:
        """The decode that owns the session, if one does."""
        return self.decode if self.state is SessionState.DECODING else None

    def require(self, event: SessionEvent) -> None:
        """Raise `SessionBusy` if the event has no place in the present state."""
        if (self.state, event) not in TRANSITIONS:
            raise SessionBusy(f"session {self.id!r} is {self.state}: cannot {event}")

    def advance(self, event: SessionEvent) -> None:
        """Change state by the table."""
        self.require(event)
        self.state = TRANSITIONS[self.state, event]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What one may know of a session at one moment; safe to hand to another thread."""

    id: str
    state: SessionState
    length: int
    evaluated_count: int
    context_tokens: int
    seed: int
    sampling: Sampling
    parent: str | None
    reused_tokens: int
    page_limit: int
    pages: tuple[int, ...]
    age_seconds: float
    unused_seconds: float

    @classmethod
    def of(cls, session: Session, now: float) -> SessionInfo:
        """Take the picture."""
        return cls(
            id=session.id,
            state=session.state,
            length=len(session.tokens),
            evaluated_count=session.evaluated_count,
            context_tokens=session.context_tokens,
            seed=session.seed,
            sampling=session.sampling,
            parent=session.parent,
            reused_tokens=session.reused_tokens,
            page_limit=session.place.table.limit,
            pages=tuple(session.place.table.pages),
            age_seconds=now - session.created_at,
            unused_seconds=now - session.used_at if session.state is SessionState.IDLE else 0.0,
        )
