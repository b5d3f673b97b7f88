"""Stop strings, across tokens.

The rule, which does not depend on how text was cut into tokens: text is read character by character, and the first stop
to be complete ends it; of several that complete on the same character, the longest. Text before that stop is given out,
the stop and what follows are not. Text that may yet turn out to be a stop is held back until it cannot, or to the end.

A matcher belongs to one decode: a stop begun in the prompt or in an earlier decode is not found: that text is out.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first of several stop strings in text that comes in pieces. An empty one is a ValueError."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty")
        self._stops = [_Stop(text) for text in dict.fromkeys(stops)]
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more text; return what may be given out, and the stop string that ended it, if one did."""
        buffer, held_length = self._held + text, len(self._held)
        for end, character in enumerate(text, start=held_length + 1):
            complete = [stop.text for stop in self._stops if stop.advance(character)]
            if complete:
                found = max(complete, key=len)
                self._held = ""
                return buffer[: end - len(found)], found
        keep = max((stop.matched for stop in self._stops), default=0)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep], None

    def flush(self) -> str:
        """Return the text held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held


class _Stop:
    """One stop string and how much of it the text so far ends with (Knuth, Morris, Pratt)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallbacks = _fallbacks(text)

    def advance(self, character: str) -> bool:
        """Take one character; tell whether the stop string is complete."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._fallbacks[self.matched - 1]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


def _fallbacks(text: str) -> list[int]:
    """Return, for each prefix, the length of its longest proper prefix that is also its suffix."""
    lengths, length = [0], 0
    for character in text[1:]:
        while length and text[length] != character:
            length = lengths[length - 1]
        length += text[length] == character
        lengths.append(length)
    return lengths
