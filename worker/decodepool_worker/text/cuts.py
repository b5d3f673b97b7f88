"""Where a long text can be cut so that its pieces encode to what the whole does.

The places are those that no rule of the vocabulary looks across. In byte-level BPE it is between a letter and a space
before a letter: every row of `pretokenizers.py` ends a word there, and none looks back. Where lines are words, it is
before a line feed. SPM merges across everything: its texts stay whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from decodepool_worker.text.vocabulary import Model, TokenType, Vocabulary

PIECE_CHARACTERS = 1 << 14
"""What a piece has at least: some megabytes while it is encoded."""

PLACES = {
    Model.BYTE_BPE: (r"(?<=[A-Za-z])(?= [A-Za-z])", r"[A-Za-z] "),
    Model.SPACED_BPE: (r"(?<=[^\n])(?=\n)", r"[^\n]\n"),
}
"""By model: the places, and what a token that is matched whole must not hold, lest it lie across one."""


class Cuts:
    """The cuts of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        place, across = PLACES.get(vocabulary.model, (None, ""))
        whole = (TokenType.USER_DEFINED, TokenType.CONTROL)
        matched = (text for text, kind in zip(vocabulary.texts, vocabulary.types, strict=True) if kind in whole)
        is_safe = place is not None and not any(re.search(across, text) for text in matched)
        self._place = re.compile(place) if is_safe and place is not None else None

    def pieces(self, text: str) -> Iterator[str]:
        """Yield the text in pieces of `PIECE_CHARACTERS` and what is left to the next place for a cut."""
        start = 0
        while self._place is not None and len(text) - start > PIECE_CHARACTERS:
            found = self._place.search(text, start + PIECE_CHARACTERS)
            if found is None:
                break
            yield text[start : found.start()]
            start = found.start()
        yield text[start:]
