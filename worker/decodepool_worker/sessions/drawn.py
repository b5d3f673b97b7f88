"""What a decode drew, kept so that it can be told again: flat arrays, a tenth of what the events themselves take."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from decodepool_worker.sessions.events import TokenEvent


class DrawnTokens:
    """The token events of one decode, from position `start` on.

    A token takes 16 bytes and those of its text; with log-probabilities 12 more, and 12 for each of the best beside it.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._tokens = array("I")
        self._text = bytearray()
        self._text_ends = array("Q")
        self._logprobs = array("d")
        self._top_tokens = array("I")
        self._top_logprobs = array("d")
        self._top_ends = array("I")

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> array[int]:
        """The ids alone; not to be changed."""
        return self._tokens

    def append(self, event: TokenEvent) -> None:
        """Keep an event. Of one decode, all have log-probabilities or none has."""
        self._tokens.append(event.token)
        self._text += event.text.encode("utf-8", "surrogatepass")
        self._text_ends.append(len(self._text))
        if event.logprob is not None:
            self._logprobs.append(event.logprob)
            self._top_tokens.extend(token for token, _ in event.top)
            self._top_logprobs.extend(logprob for _, logprob in event.top)
            self._top_ends.append(len(self._top_tokens))

    def after(self, position: int) -> Iterator[TokenEvent]:
        """Yield the events after a position, as they were."""
        for index in range(position + 1 - self._start, len(self)):
            yield self._event(index)

    def _event(self, index: int) -> TokenEvent:
        text = self._text[_begin(self._text_ends, index) : self._text_ends[index]].decode("utf-8", "surrogatepass")
        position, token = self._start + index, self._tokens[index]
        if not self._logprobs:
            return TokenEvent(position, token, text)
        best = slice(_begin(self._top_ends, index), self._top_ends[index])
        top = tuple(zip(self._top_tokens[best], self._top_logprobs[best], strict=True))
        return TokenEvent(position, token, text, self._logprobs[index], top)


def _begin(ends: array[int], index: int) -> int:
    return ends[index - 1] if index else 0
