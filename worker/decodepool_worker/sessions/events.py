"""What a stream tells: a token, a token, ..., the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled", "error"]


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
