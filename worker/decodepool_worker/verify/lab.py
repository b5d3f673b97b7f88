"""The token streams that the gates run, their lone reference, and the hands that run spans and sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decodepool_worker.engine.rows import PAGE_TOKENS, Engine, Span
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.events import EndEvent, TokenEvent
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.session import Session
from decodepool_worker.verify.witness import Memory, Witness

CONTEXT_TOKENS = 3 * PAGE_TOKENS
"""What a session of a lab may hold."""

SESSIONS = 64
"""Sessions, and so logits rows, that a lab needs: its widest step."""

STREAM_LENGTHS = (2 * PAGE_TOKENS + 4, PAGE_TOKENS + 4, 20)
"""The streams end in a third, a second and a first page, just past the edges where attention changes its splits."""

PLACES = SESSIONS + len(STREAM_LENGTHS)


class BrokenGate(RuntimeError):  # noqa: N818 - it says what happened
    """A gate could not bring about the situation it is for: neither a pass nor a difference."""


class Lab:
    """An engine under watch, and streams whose every row was computed alone.

    The engine needs SESSIONS slots, and room for twice as many contexts of CONTEXT_TOKENS.
    """

    def __init__(self, engine: Engine, memory: Memory | None = None) -> None:
        self.engine = engine
        self.witness = Witness(engine, memory)
        self.streams = [stream(index, length, engine.vocabulary_size) for index, length in enumerate(STREAM_LENGTHS)]
        needed = PLACES * CONTEXT_TOKENS // PAGE_TOKENS
        if engine.slot_count < SESSIONS or engine.page_count < needed or engine.max_step_rows < sum(STREAM_LENGTHS):
            raise BrokenGate(f"the gates need {SESSIONS} slots, {needed} pages and steps of {sum(STREAM_LENGTHS)} rows")

    def reference(self) -> None:
        """Compute every row of every stream alone, one token a step. What the memory knows already is compared."""
        for place, tokens in enumerate(self.streams):
            for position in range(len(tokens)):
                self.witness.step([self.span(place, place, position, 1)])

    def table(self, place: int) -> list[int]:
        """Return the pages of a place. Places are numbered from 0; those of the streams come first."""
        pages = CONTEXT_TOKENS // PAGE_TOKENS
        return list(range(place * pages, (place + 1) * pages))

    def span(self, stream_index: int, place: int, position: int, count: int, slot: int | None = None) -> Span:
        """Return `count` rows of a stream at a place. The last one's logits go to `slot`, or to the place's number."""
        tokens = self.streams[stream_index][position : position + count]
        return Span(self.table(place), position, tokens, place if slot is None else slot)

    def prefill(self) -> None:
        """Put every stream whole into its own place, in one step."""
        self.witness.step([self.span(i, i, 0, len(tokens)) for i, tokens in enumerate(self.streams)])

    def residence(self, sessions: int = 8) -> Residence:
        """Return an empty residence: it remembers no prefix, and finds pages full of what was there before."""
        return Residence(self.witness, context_tokens=CONTEXT_TOKENS, sessions=sessions)

    def unwatched(self, sessions: int = 8) -> Residence:
        """Return the same straight on the engine, as it serves: a GPU's steps begin before those ahead are read, with
        tokens that only the device knows. There is no witness between, so only drawn tokens can be compared.
        """
        return Residence(self.engine, context_tokens=CONTEXT_TOKENS, sessions=sessions)


def stream(index: int, length: int, vocabulary_size: int) -> list[int]:
    """Return tokens all over the vocabulary, the same ones on every machine."""
    return [(48271 * (index * 1009 + i + 1) + 12345 * i * i) % 2147483647 % vocabulary_size for i in range(length)]


def drive(residence: Residence, until: Callable[[], bool] = lambda: False) -> None:
    """Step until something is so, or there is nothing to do. BrokenGate if the engine failed."""
    while not until() and residence.tick():
        pass
    if residence.fault is not None:
        raise BrokenGate(residence.fault)


class Listener:
    """Keeps what a decode drew."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.end: EndEvent | None = None

    def __call__(self, event: TokenEvent | EndEvent) -> None:
        """Take an event."""
        if isinstance(event, TokenEvent):
            self.tokens.append(event.token)
        else:
            self.end = event


def begin_decode(residence: Residence, session: Session, request: DecodeRequest) -> Listener:
    """Begin a decode and listen to it."""
    listener = Listener()
    residence.decode(session.id, request, listener)
    return listener


def append_one_by_one(residence: Residence, session: Session, tokens: Sequence[int]) -> None:
    """Append tokens one at a time, so that each one's logits are compared."""
    for token in tokens:
        residence.append(session.id, [token])
        drive(residence)
