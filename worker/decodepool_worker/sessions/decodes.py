"""One decode of one session: what was asked, what was drawn, and the text it made.

A decode keeps its events. So a client that lost its connection can be given what it missed, and the decode can go on
as if nothing had happened: tokens depend on the session alone, and text on the tokens that this decode drew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from decodepool_worker.engine.rows import Sampled, Sampling
from decodepool_worker.text.stops import StopMatcher

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """How to decode. `max_tokens` None: to the end of the context; 0: end at once. `sampling` None: the session's own.

    A stop string is looked for in the text of this decode alone: one that began in the prompt, or in an earlier
    decode, is not found. `stop_tokens` are end-of-turn ids.
    """

    max_tokens: int | None = None
    sampling: Sampling | None = None
    stop_strings: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token was drawn and is now the session's `position`-th. `text` is what became certain by it, often none."""

    position: int
    token: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The last event of a stream.

    `length` is the session's: it counts every token drawn, those that spelled a stop too. `text` was held back until
    now; whoever resumes a cancelled decode is given it again. `stop` is the string or id that ended it, and `error`
    tells why it ended otherwise than asked.
    """

    finish_reason: FinishReason
    length: int
    generated: int
    text: str = ""
    stop: str | int | None = None
    error: str | None = None


Sink = Callable[[TokenEvent | EndEvent], None]
"""Takes a stream's events, on the thread of the residence. It must not block and must not call back."""


class Detokenizer(Protocol):
    """Bytes of tokens to text, never half a character."""

    def push(self, token: int) -> str:
        """Return the text that this token completes."""

    def finish(self) -> str:
        """Return what is left, its broken bytes replaced."""


DetokenizerFactory = Callable[[int], Detokenizer]
"""Makes a detokenizer for what follows the given token."""


def no_text(after: int) -> NoText:  # noqa: ARG001  a factory's parameter
    """Make the detokenizer of a model without a tokenizer."""
    return NoText()


class NoText:
    """Every token stands for no text."""

    def push(self, token: int) -> str:  # noqa: ARG002  the protocol's parameter
        """Return no text."""
        return ""

    def finish(self) -> str:
        """Return no text."""
        return ""


class DecodeText:
    """The text of one decode up to its stop string."""

    def __init__(self, detokenizer: Detokenizer, stops: tuple[str, ...]) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)

    def push(self, token: int) -> tuple[str, str | None]:
        """Return the text that became certain, and the stop string if it is complete."""
        return self._matcher.push(self._detokenizer.push(token))

    def finish(self) -> str:
        """Return the text that was held back."""
        text, stop = self._matcher.push(self._detokenizer.finish())
        return text if stop is not None else text + self._matcher.flush()


@dataclass(slots=True, eq=False)
class Decode:
    """A decode under way, or the last one of its session: of the tokens at `start` up to, not with, `end_length`."""

    request: DecodeRequest
    sampling: Sampling
    start: int
    end_length: int
    sink: Sink
    text: DecodeText
    events: list[TokenEvent] = field(default_factory=list)
    end: EndEvent | None = None

    @property
    def length(self) -> int:
        """The session's length after the tokens drawn so far."""
        return self.start + len(self.events)

    def take(self, sampled: Sampled) -> FinishReason | None:
        """Record a drawn token, tell the stream, and end where it ends the decode."""
        token, stop = sampled.token, None
        text = ""
        if token not in self.request.stop_tokens:
            text, stop = self.text.push(token)
        event = TokenEvent(self.length, token, text, sampled.logprob, sampled.top)
        self.events.append(event)
        self.sink(event)
        if token in self.request.stop_tokens:
            return self.finish("stop", stop=token)
        if stop is not None:
            return self.finish("stop", stop=stop)
        return self.finish("length") if self.length >= self.end_length else None

    def finish(self, reason: FinishReason, *, stop: str | int | None = None, error: str | None = None) -> FinishReason:
        """End the stream with what was held back, which a stop string leaves nothing of."""
        text = "" if isinstance(stop, str) else self.text.finish()
        self.end = EndEvent(reason, self.length, len(self.events), text, stop, error)
        self.sink(self.end)
        return reason

    def abort(self, error: str) -> None:
        """End the stream because the session failed. Its text is left alone: that may be what failed."""
        self.end = EndEvent("error", self.length, len(self.events), error=error)
        self.sink(self.end)

    def replay(self, after: int, sink: Sink) -> None:
        """Give a new stream every event after position `after`, and the later ones as they come."""
        if self.end is None:
            self.sink(EndEvent("cancelled", self.length, len(self.events), error="resumed by another stream"))
        self.sink = sink
        for event in self.events[after + 1 - self.start :]:
            sink(event)

    def reopen(self, text: DecodeText) -> None:
        """Go on after a cancel: `text`, a fresh one, is brought to where the tokens so far leave it."""
        for event in self.events:
            text.push(event.token)
        self.text = text
        self.end = None
