"""The step: every row that is due, once through the engine, and what came of it back into the sessions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from operator import attrgetter

from decodepool_worker.engine.rows import Draw, Engine, NonFiniteLogits, Outcome, OverlappingEngine, Sampled, Span
from decodepool_worker.sessions.decodes import Decode
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
        self._engine = engine
        self._household = household
        self._clock = clock
        self._prefill_chunk_rows = prefill_chunk_rows
        self._observe_step = observe_step
        self._begin = engine.begin if isinstance(engine, OverlappingEngine) else None
        self._held: list[Session] = []
        self._foreseen: dict[str, tuple[Decode, list[int], Span]] = {}
        self.on_told: Callable[[], None] | None = None

    def tick(self) -> bool:
        """Run one engine step if there is work; False if there is none."""
        sessions = self._household.sessions
        work = choose_work(sessions, self._engine.max_step_rows, self._prefill_chunk_rows)
        if not work or self.fault is not None:
            self._tell()
            return False
        began = self._clock()
        try:
            spans = [self._span(session, rows) for session, rows in work]
            outcomes = self._stepped(work, spans)
        except Exception as error:  # whatever it is, nothing that the engine says can be trusted any more
            self.fail(error)
            return True
        for (session, _), span, outcome in zip(work, spans, outcomes, strict=True):
            self._settle(session, span, outcome)
        self._count(report_step(zip(spans, outcomes, strict=True), self._clock() - began))
        return True

    def _stepped(self, work: list[Work], spans: list[Span]) -> list[Outcome]:
        """Run a step; while it runs beside this process, tell what the one before drew."""
        if self._begin is None:
            return self._engine.step(spans)
        outcomes = self._begin(spans)
        self._tell()
        if self.on_told is not None:
            self.on_told()
        self._foresee(work, spans)
        return outcomes()

    def _foresee(self, work: list[Work], spans: list[Span]) -> None:
        """Make the spans of the step after, but for their tokens, while this one runs."""
        self._foreseen = {}
        for (session, _), span in zip(work, spans, strict=True):
            decode = session.decode
            if span.draw is not None and decode is not None and session.state is _DECODING:
                position = span.position + len(span.tokens)
                draw = Draw(decode.sampling, session.seed, position + 1, session.tokens, decode.request.top_logprobs)
                token = [0]
                self._foreseen[session.id] = decode, token, Span(span.pages, position, token, span.slot, draw)

    def _seen(self, session: Session, rows: int) -> Span | None:
        """Return the span that was foreseen for a session, with its token, if it came so."""
        if session.id not in self._foreseen:
            return None
        decode, token, span = self._foreseen.pop(session.id)
        position = session.evaluated_count
        if decode is not session.running_decode or rows != 1 or span.position != position:
            return None
        if len(session.tokens) != position + 1:
            return None
        token[0] = session.tokens[position]
        return span

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
        self._tell()
        self._household.fail_all(self.fault)

    def _span(self, session: Session, rows: int) -> Span:
        self._household.memory.cover(session.place, session.evaluated_count + rows)
        session.served_step = self._household.totals.steps + 1
        return self._seen(session, rows) or span_of(session, rows)

    def _settle(self, session: Session, span: Span, outcome: Outcome) -> None:
        """Take in what the step did for one session. Its text is made here: a fault in that is the session's own. One
        that failed while the step ran has nothing to take.
        """
        if session.state is SessionState.FAILED:
            return
        try:
            if isinstance(outcome, NonFiniteLogits):
                self._household.fail(session, outcome.message)
            else:
                self._take(session, span, outcome)
        except Exception as error:
            logger.exception("session %s failed", session.id)
            self._household.fail(session, f"internal error: {error}")

    def _take(self, session: Session, span: Span, sampled: Sampled | None) -> None:
        session.evaluated_count += len(span.tokens)
        self._household.memory.register(session.place, session.tokens, session.evaluated_count)
        if sampled is not None and session.running_decode is not None:
            session.tokens.append(sampled.token)
            if self._begin is not None and session.running_decode.hold(sampled):
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


def choose_work(sessions: Iterable[Session], max_step_rows: int, prefill_chunk_rows: int) -> list[Work]:
    """Choose the sessions of one step and their rows, who was served longest ago first."""
    wanting = [session for session in sessions if session.state is _PREFILLING or session.state is _DECODING]
    wanting.sort(key=_served_step)
    pending = [session.pending_count for session in wanting]
    if wanting and max(pending) <= 1 and len(wanting) <= max_step_rows and all(s.state is _DECODING for s in wanting):
        return list(zip(wanting, pending, strict=True))  # what planning gives where nobody waits for anybody
    needs = [Need(session.pending_count, session.state is SessionState.DECODING) for session in wanting]
    rows = plan_step(needs, max_step_rows, prefill_chunk_rows)
    return [(session, count) for session, count in zip(wanting, rows, strict=True) if count is not None]


_PREFILLING, _DECODING = SessionState.PREFILLING, SessionState.DECODING
_served_step = attrgetter("served_step")


def span_of(session: Session, rows: int) -> Span:
    """Make the next `rows` pending tokens a span. The last one keeps its logits, from which a running decode draws."""
    begin, end = session.evaluated_count, session.evaluated_count + rows
    is_last = end == len(session.tokens)
    return Span(
        pages=session.place.table.pages,
        position=begin,
        tokens=session.tokens[begin:end],
        slot=session.place.slot if is_last else None,
        draw=draw_of(session) if is_last else None,
    )


def draw_of(session: Session) -> Draw | None:
    """Ask for the session's next token, if it decodes. The history is the live list: the engine is done with it in
    the step."""
    decode = session.running_decode
    if decode is None:
        return None
    return Draw(decode.sampling, session.seed, len(session.tokens), session.tokens, decode.request.top_logprobs)


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
