"""A step under way, and where each of its sessions will stand once it has ended.

The step after is begun behind it. What a session draws meanwhile is known to the device alone; whether it ends there,
by a stop token or a stop string, is found out one step late, and the row that was evaluated beyond is of no use to its
decode. It harms nobody: it was written where the session's next token belongs, in a page that nobody shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from decodepool_worker.engine.rows import Draw, Outcome, Span
from decodepool_worker.sessions.decodes import Decode
from decodepool_worker.sessions.session import Session, SessionState


@dataclass(frozen=True, slots=True)
class Part:
    """What a session has in a step, and the decode that asked for it."""

    session: Session
    decode: Decode | None
    span: Span

    @property
    def draws(self) -> bool:
        """Whether it draws a token that is still asked for: its decode may have ended, and another begun."""
        return self.span.draw is not None and self.session.running_decode is self.decode

    @property
    def ends_decode(self) -> bool:
        """Whether that token is the last one its decode may draw."""
        return self.draws and self.decode is not None and self.decode.length + 1 >= self.decode.end_length


Parts = Mapping[str, Part]
"""By session's id."""
NO_PARTS: Parts = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was begun at `began`; `outcomes` waits for its end. Whether another may begin behind it."""

    parts: Parts
    outcomes: Callable[[], Sequence[Outcome]]
    began: float
    can_be_followed: bool


def evaluated_after(session: Session, ahead: Parts) -> int:
    """Return how many tokens a session has evaluated once the step ahead has ended."""
    part = ahead.get(session.id)
    return session.evaluated_count + (0 if part is None else len(part.span.tokens))


def pending_after(session: Session, ahead: Parts) -> int:
    """Return how many tokens, the one that the step ahead draws included, are not evaluated then."""
    part = ahead.get(session.id)
    if part is None:
        return session.pending_count
    return session.pending_count + part.draws - len(part.span.tokens)


def wants_rows(session: Session, ahead: Parts) -> bool:
    """Tell whether a session has something to do behind the step ahead."""
    if session.state is not SessionState.DECODING:
        return session.state is SessionState.PREFILLING
    part = ahead.get(session.id)
    return part is None or not part.ends_decode


def part_of(session: Session, rows: int, ahead: Parts) -> Part:
    """Make a session's next rows its part of a step. The last pending token keeps its logits, from which a running
    decode draws.
    """
    begin = evaluated_after(session, ahead)
    end, known = begin + rows, len(session.tokens)
    is_last = end == begin + pending_after(session, ahead)
    follows = rows > 0 and begin == known
    span = Span(
        pages=session.place.table.pages,
        position=begin,
        tokens=(0,) if follows else session.tokens[begin:end],
        slot=session.place.slot if is_last else None,
        draw=draw_of(session, end) if is_last else None,
        follows=follows,
    )
    return Part(session, session.running_decode, span)


def draw_of(session: Session, position: int) -> Draw | None:
    """Ask for the token at a position, if the session decodes. The history is the live list: whoever looks at it does
    so while every token before is in it, and is done with it in the step.
    """
    decode = session.running_decode
    if decode is None:
        return None
    return Draw(decode.sampling, session.seed, position, session.tokens, decode.request.top_logprobs)
