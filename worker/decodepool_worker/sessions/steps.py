"""From sessions to the spans of one step."""

from __future__ import annotations

from collections.abc import Iterable

from decodepool_worker.engine.rows import Draw, Outcome, Sampled, Span
from decodepool_worker.sessions.scheduler import Need, plan_step
from decodepool_worker.sessions.session import Session, SessionState
from decodepool_worker.sessions.stats import StepReport

Work = tuple[Session, int]
"""A session and its rows in one step."""


def choose_work(sessions: Iterable[Session], max_step_rows: int, prefill_chunk_rows: int) -> list[Work]:
    """Choose the sessions of one step and their rows, who was served longest ago first."""
    wanting = [session for session in sessions if session.state in {SessionState.PREFILLING, SessionState.DECODING}]
    wanting.sort(key=lambda session: session.served_step)
    needs = [Need(session.pending_count, session.state is SessionState.DECODING) for session in wanting]
    rows = plan_step(needs, max_step_rows, prefill_chunk_rows)
    return [(session, count) for session, count in zip(wanting, rows, strict=True) if count is not None]


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
