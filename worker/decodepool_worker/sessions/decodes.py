"""One decode of one session: what was asked, what was drawn, and the text it made.

A decode keeps what it told. So a client that lost its connection can be given what it missed, and the decode can go on
as if nothing had happened: tokens depend on the session alone, and text on the tokens that this decode drew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from decodepool_worker.engine.rows import Sampled, Sampling
from decodepool_worker.sessions.drawn import DrawnTokens
from decodepool_worker.sessions.events import EndEvent, FinishReason, Sink, TokenEvent
from decodepool_worker.text.stops import StopMatcher


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
    drawn: DrawnTokens = field(init=False)
    end: EndEvent | None = None
    held: Sampled | None = None

    def __post_init__(self) -> None:
        self.drawn = DrawnTokens(self.start)

    @property
    def length(self) -> int:
        """The session's length after the tokens drawn so far."""
        return self.start + len(self.drawn) + (self.held is not None)

    def hold(self, sampled: Sampled) -> bool:
        """Keep a drawn token to be told by `tell`, if it certainly does not end the decode; False if it may."""
        request = self.request
        if request.stop_strings or sampled.token in request.stop_tokens:
            return False
        if self.start + len(self.drawn) + 1 >= self.end_length:
            return False
        self.held = sampled
        return True

    def tell(self) -> None:
        """Tell the stream of a token that was kept, if one was."""
        if self.held is not None:
            sampled, self.held = self.held, None
            self.take(sampled)

    def take(self, sampled: Sampled) -> FinishReason | None:
        """Record a drawn token, tell the stream, and end where it ends the decode."""
        token, stop = sampled.token, None
        text = ""
        if token not in self.request.stop_tokens:
            text, stop = self.text.push(token)
        event = TokenEvent(self.length, token, text, sampled.logprob, sampled.top)
        self.drawn.append(event)
        self.sink(event)
        if token in self.request.stop_tokens:
            return self.finish("stop", stop=token)
        if stop is not None:
            return self.finish("stop", stop=stop)
        return self.finish("length") if self.length >= self.end_length else None

    def finish(self, reason: FinishReason, *, stop: str | int | None = None, error: str | None = None) -> FinishReason:
        """End the stream with what was held back, which a stop string leaves nothing of."""
        self.tell()
        text = "" if isinstance(stop, str) else self.text.finish()
        self.end = EndEvent(reason, self.length, len(self.drawn), text, stop, error)
        self.sink(self.end)
        return reason

    def abort(self, error: str) -> None:
        """End the stream because the session failed. Its text is left alone: that may be what failed."""
        self.held = None
        self.end = EndEvent("error", self.length, len(self.drawn), error=error)
        self.sink(self.end)

    def replay(self, after: int, sink: Sink) -> None:
        """Give a new stream every event after position `after`, and the later ones as they come."""
        self.tell()
        if self.end is None:
            self.sink(EndEvent("cancelled", self.length, len(self.drawn), error="resumed by another stream"))
        self.sink = sink
        for event in self.drawn.after(after):
            sink(event)

    def reopen(self, text: DecodeText) -> None:
        """Go on after a cancel: `text`, a fresh one, is brought to where the tokens so far leave it."""
        for token in self.drawn.tokens:
            text.push(token)
        self.text = text
        self.end = None
