"""Counts for metrics and the live page: plain values, safe to hand to another thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from decodepool_worker.sessions.pages import PageCounts
from decodepool_worker.sessions.session import SessionState

LIVE_STATES = (SessionState.PREFILLING, SessionState.IDLE, SessionState.DECODING)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: how long it took, its rows, and the tokens drawn."""

    seconds: float
    decode_rows: int
    prefill_rows: int
    drawn_tokens: int


StepObserver = Callable[[StepReport], None]
"""Hears of each step on the residence's thread: a histogram's `observe`, say. It must not block."""


@dataclass(slots=True)
class Totals:
    """Counters since the start; they only grow."""

    steps: int = 0
    decoded_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    sessions_created: int = 0
    sessions_closed: int = 0
    sessions_failed: int = 0
    sessions_refused: int = 0

    def copy(self) -> Totals:
        """Take a picture."""
        return replace(self)


@dataclass(frozen=True, slots=True)
class Stats:
    """One moment of a residence. `sessions` has every live state, be it 0; `last_step` is None before the first."""

    sessions: dict[SessionState, int]
    session_capacity: int
    pages: PageCounts
    totals: Totals
    last_step: StepReport | None
    draining: bool
    fault: str | None
