"""Tokens to text, one at a time.

The rules:
- Text comes out in whole characters: bytes that begin one are kept until it is complete.
- Bytes that are no UTF-8 become U+FFFD by the rule of Python's `bytes.decode("utf-8", "replace")`: one for each longest
  piece that could have begun a character. So FF gives one, C0 80 two, ED A0 80 three, a character cut by the end one.
- The pieces joined are the whole: pushing tokens one by one and decoding them at once give the same text.
- Marks (control tokens and those that end a turn) are no text, unless `special` asks to see them.
- SPM encoding puts a space before the first word of a text and after each token that it matched whole; that space, and
  no other, is taken off again.

Work per token is that of its own bytes: nothing is decoded twice.
"""

from __future__ import annotations

import codecs

from decodepool_worker.text.pieces import Pieces

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The state of one stream of text: bytes of an unfinished character, and whether a space now would be an artefact.

    `after` is the token before the first that is pushed, None at the start of a session.
    """

    def __init__(self, pieces: Pieces, *, after: int | None = None, special: bool = False) -> None:
        self._pieces = pieces
        self._special = special
        self._decoder = _new_decoder("replace")
        self._fresh = pieces.strips_space and (after is None or pieces.is_added(after))

    def push(self, token: int) -> str:
        """Take one token; return the text that is complete now, often all of the token's, sometimes none."""
        data = self._pieces.token_bytes(token, special=self._special)
        if self._fresh and data.startswith(b" ") and not self._pieces.is_added(token):
            data = data[1:]
        self._fresh = self._pieces.strips_space and self._pieces.is_added(token)
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return what a character cut short leaves: U+FFFD, or nothing. Later tokens begin afresh."""
        return self._decoder.decode(b"", final=True)
