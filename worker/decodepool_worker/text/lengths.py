"""How many tokens a text is at least, told from its bytes alone: what cannot fit is refused before it is encoded."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from decodepool_worker.text.pieces import Pieces
from decodepool_worker.text.vocabulary import SPACE, Model, TokenType, Vocabulary

BYTE_VALUES = 256

COUNTED_AT_ONCE = 1 << 16
"""Bytes: counting holds the GIL from its beginning to its end, here for two milliseconds."""


class Lengths:
    """A lower bound for one vocabulary.

    A token of n bytes counts 1/n for each, so a byte counts at least the inverse of the longest token that holds it.
    """

    def __init__(self, vocabulary: Vocabulary, pieces: Pieces) -> None:
        self._vocabulary = vocabulary
        self._pieces = pieces

    def least_tokens(self, text: str, *, special: bool) -> int:
        """Return a count that no encoding of `text` is below. `special`: with control tokens read as such."""
        longest = self._longest_with_marks if special else self._longest
        if self._swallows:
            return 0
        spelled = text.replace(SPACE, " ") if self._vocabulary.spells_spaces else text
        counts = _counts(spelled.encode("utf-8", "replace"))
        return int(sum(count / longest[byte] for byte, count in counts.items() if longest[byte]))

    @cached_property
    def _swallows(self) -> bool:
        """Whether one unknown token may stand for any length of text."""
        spelled = sum(kind is TokenType.BYTE for kind in self._vocabulary.types)
        return self._vocabulary.model is not Model.BYTE_BPE and spelled < BYTE_VALUES

    @cached_property
    def _longest(self) -> list[int]:
        """By byte: the bytes of the longest token that holds it; 0 where none does, and the byte is dropped."""
        return self._table([0] * BYTE_VALUES, marks=False)

    @cached_property
    def _longest_with_marks(self) -> list[int]:
        return self._table(list(self._longest), marks=True)

    def _table(self, longest: list[int], *, marks: bool) -> list[int]:
        for token in range(len(self._vocabulary.texts)):
            if self._pieces.is_special(token) is marks:
                spelling = self._pieces.token_bytes(token, special=marks)
                for byte in set(spelling):
                    longest[byte] = max(longest[byte], len(spelling))
        return longest


def _counts(data: bytes) -> Counter[int]:
    counts: Counter[int] = Counter()
    for start in range(0, len(data), COUNTED_AT_ONCE):
        counts.update(data[start : start + COUNTED_AT_ONCE])
    return counts
