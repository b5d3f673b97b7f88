"""The step: every row that is due, once through the engine, and what came of it back into the sessions.

On an engine whose steps run beside this process the next step is begun before the one under way is read, wherever the
device itself knows the tokens that it draws. The GPU then never waits for us: not for texts and events, nor for plans.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter

from decodepool_worker.engine.rows import Engine, NonFiniteLogits, Outcome, OverlappingEngine, Sampled, Span
from decodepool_worker.sessions.flight import (
    NO_PARTS,
    Flight,
    Part,
    Parts,
    evaluated_after,
    part_of,
    pending_after,
    wants_rows,
)
from decodepool_worker.sessions.household import Household
from decodepool_worker.sessions.scheduler import Need, plan_step
from decodepool_worker.sessions.session import Session, SessionEvent, SessionState
from decodepool_worker.sessions.stats import StepObserver, StepReport

logger = logging.getLogger(__name__)

Work = tuple[Session, int]
"""A session and its rows in one step."""


class Stepper:
    """Steps a household's sessions on their engine. `fault` is None until the engine raised; then it steps no more."""

    def __init__(
        self,
        engine: Engine,
        household: Household,
        clock: Callable[[], float],
        prefill_chunk_rows: int,
        observe_step: StepObserver | None,
    ) -> None:
        self.fault: str | None = None
        self.last_step: StepReport | None = None
        self.on_told: Callable[[], None] | None = None
        self._engine = engine
        self._household = household
        self._clock = clock
        self._prefill_chunk_rows = prefill_chunk_rows
        self._observe_step = observe_step
        self._beside = engine if isinstance(engine, OverlappingEngine) else None
        self._begun = 0
        self._under_way: Flight | None = None
        self._ended_at = 0.0
        self._held: list[Session] = []

    def tick(self) -> bool:
        """Bring one engine step to its end if there is work; False if there is none."""
        if self.fault is not None:
            return False
        try:
            flight = self._under_way or self._launched(NO_PARTS)
            if flight is None:
                self._tell()
                return False
            self._under_way = self._launched(flight.parts) if flight.can_be_followed else None
            if self._beside is not None:
                self._tell_beside()
            outcomes = flight.outcomes()
        except Exception as error:  # whatever it is, nothing that the engine says can be trusted any more
            self.fail(error)
            return True
        self._land(flight, outcomes)
        return True

    def _launched(self, ahead: Parts) -> Flight | None:
        """Begin the step behind the one ahead; None if nobody wants rows of it."""
        work = choose_work(self._household.sessions, self._engine.max_step_rows, self._prefill_chunk_rows, ahead)
        if not work:
            return None
        began = self._clock()
        self._begun += 1
        parts = {session.id: self._part(session, rows, ahead) for session, rows in work}
        spans = [part.span for part in parts.values()]
        if self._beside is None:
            return Flight(parts, partial(self._engine.step, spans), began, can_be_followed=False)
        return Flight(parts, self._beside.begin(spans), began, self._beside.can_be_followed(spans))

    def _part(self, session: Session, rows: int, ahead: Parts) -> Part:
        self._household.memory.cover(session.place, evaluated_after(session, ahead) + rows)
        session.served_step = self._begun
        return part_of(session, rows, ahead)

    def _tell_beside(self) -> None:
        """Tell what the step before drew, while this one runs."""
        self._tell()
        if self.on_told is not None:
            self.on_told()

    def _tell(self) -> None:
        """Tell the tokens that were held. A fault in a text is its session's own."""
        held, self._held = self._held, []
        for session in held:
            try:
                if session.decode is not None:
                    session.decode.tell()
            except Exception as error:
                logger.exception("session %s failed", session.id)
                self._household.fail(session, f"internal error: {error}")

    def fail(self, error: Exception) -> None:
        """End every session with an error, and step no more."""
        logger.critical("the engine failed", exc_info=error)
        self.fault = f"the engine failed: {type(error).__name__}: {error}"
        self._under_way = None
        self._tell()
        self._household.fail_all(self.fault)

    def _land(self, flight: Flight, outcomes: Iterable[Outcome]) -> None:
        """Take in what a step did. Of two that overlap the later one lasts from the end of the first."""
        taken = []
        for part, outcome in zip(flight.parts.values(), outcomes, strict=True):
            wanted = outcome if part.draws else None
            taken.append((part.span, wanted))
            self._settle(part, wanted)
        began, self._ended_at = max(flight.began, self._ended_at), self._clock()
        self._count(report_step(taken, self._ended_at - began))

    def _settle(self, part: Part, outcome: Outcome) -> None:
        """Take in what the step did for one session. Its text is made here: a fault in that is the session's own. One
        that failed or was closed while the step ran has nothing to take.
        """
        session = part.session
        if session.state is SessionState.FAILED or session.state is SessionState.CLOSED:
            return
        try:
            if isinstance(outcome, NonFiniteLogits):
                logger.error("session %s failed: %s", session.id, outcome.message)
                self._household.fail(session, outcome.message)
            else:
                self._take(session, part.span, outcome)
        except Exception as error:
            logger.exception("session %s failed", session.id)
            self._household.fail(session, f"internal error: {error}")

    def _take(self, session: Session, span: Span, sampled: Sampled | None) -> None:
        session.evaluated_count += len(span.tokens)
        self._household.memory.register(session.place, session.tokens, session.evaluated_count)
        if sampled is not None and session.running_decode is not None:
            session.tokens.append(sampled.token)
            if self._beside is not None and session.running_decode.hold(sampled):
                self._held.append(session)
            elif session.running_decode.take(sampled) is not None:
                self._household.advance(session, SessionEvent.STOP)
        elif session.state is SessionState.PREFILLING and not session.pending_count:
            self._household.advance(session, SessionEvent.FILLED)

    def _count(self, report: StepReport) -> None:
        totals = self._household.totals
        totals.steps += 1
        totals.decoded_tokens += report.drawn_tokens
        totals.prefilled_tokens += report.prefill_rows
        self.last_step = report
        if self._observe_step is not None:
            self._observe_step(report)


def choose_work(
    sessions: Iterable[Session], max_step_rows: int, prefill_chunk_rows: int, ahead: Parts = NO_PARTS
) -> list[Work]:
    """Choose the sessions of the step behind the one ahead and their rows, who was served longest ago first."""
    wanting = [session for session in sessions if wants_rows(session, ahead)]
    wanting.sort(key=_served_step)
    pending = [pending_after(session, ahead) for session in wanting]
    if wanting and max(pending) <= 1 and len(wanting) <= max_step_rows and all(s.state is _DECODING for s in wanting):
        return list(zip(wanting, pending, strict=True))  # what planning gives where nobody waits for anybody
    needs = [Need(count, session.state is _DECODING) for session, count in zip(wanting, pending, strict=True)]
    rows = plan_step(needs, max_step_rows, prefill_chunk_rows)
    return [(session, count) for session, count in zip(wanting, rows, strict=True) if count is not None]


_DECODING = SessionState.DECODING
_served_step = attrgetter("served_step")


def report_step(results: Iterable[tuple[Span, Outcome]], seconds: float) -> StepReport:
    """Count a step's rows: a span of at most one row that draws is a decode's, every other is prefill."""
    decode_rows = prefill_rows = drawn = 0
    for span, outcome in results:
        drawn += isinstance(outcome, Sampled)
        if span.draw is not None and len(span.tokens) <= 1:
            decode_rows += len(span.tokens)
        else:
            prefill_rows += len(span.tokens)
    return StepReport(seconds, decode_rows, prefill_rows, drawn)
