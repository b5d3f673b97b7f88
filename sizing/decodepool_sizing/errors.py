# ruff: noqa: N818 - the names say what happened, as BadModelFile does, rather than that it is an error
"""What this room says when the outside world is at fault. Every text is one line."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHOWN_CHARACTERS = 80
_UNUSUAL_SPACES = re.compile(r"[^\S ]+")
_URL = re.compile(r"(?P<scheme>[^:/?#]*://)(?:[^/?#]*@)?(?P<rest>[^?#]*)")


class BadModelFile(ValueError):
    """The bytes are not a model this project can read. The text names the key, the tensor or the offset."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class UnknownArchitecture(BadModelFile):
    """A sound file of an architecture whose shape nobody has described here."""


class BadDemand(ValueError):
    """Numbers that no worker can be asked for. The text holds them, and those that are possible."""


class ContextTooLong(BadDemand):
    """More context was asked for than the model was made for. The text holds both numbers."""


class CannotFit(ValueError):
    """A plan that does not fit, with the bytes it needs, the bytes there are, and what would fit instead."""

    def __init__(self, message: str, *, needed_bytes: int, available_bytes: int, advice: str) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.advice = advice


class BadManifest(ValueError):
    """A manifest with faults, one line each in `faults`, which begins with the field's path."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


def shown(text: str) -> str:
    """Return a name from a file as it may stand in an error: printable, on one line, not longer than a line."""
    cut = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
    return _printable(cut)


def one_line(text: str) -> str:
    """Return a text from outside as it may stand in a condition, an Event or on a terminal: what breaks lines or only
    looks like a space is one, and what else has no picture of its own, such as an escape or a turn of the direction of
    writing, is told by its number.
    """
    return _printable(_UNUSUAL_SPACES.sub(" ", text))


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def told_url(url: str) -> str:
    """Return a URL as it may stand in lines that many read: without user, password, query and fragment, which may be
    secret. What is no URL, such as a path, stays as it is, but for what is not printable.
    """
    found = _URL.match(url)
    return one_line(found["scheme"] + found["rest"] if found else url)
