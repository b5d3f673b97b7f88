"""What single tokens stand for: the bytes of each, and which are marks rather than text."""

from __future__ import annotations

from decodepool_worker.text.errors import BadTokenizer
from decodepool_worker.text.vocabulary import SPACE, TOKENS, Model, TokenType, Vocabulary


class Pieces:
    """Bytes of tokens, by id, worked out on demand: a table of a quarter of a million would slow every start."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._texts = vocabulary.texts if vocabulary else []
        self._types = vocabulary.types if vocabulary else []
        self._byte_level = vocabulary is not None and vocabulary.model is Model.BYTE_BPE
        self._spells_spaces = vocabulary is not None and vocabulary.spells_spaces
        self._marks = vocabulary.eos_ids if vocabulary else frozenset[int]()
        self.strips_space = vocabulary is not None and vocabulary.add_space_prefix and vocabulary.spells_spaces
        _check_byte_tokens(self._texts, self._types)

    def is_special(self, token: int) -> bool:
        """Tell whether a token is a mark: control, unknown, or one that ends a turn."""
        if not 0 <= token < len(self._texts):
            return False
        return self._types[token] in (TokenType.CONTROL, TokenType.UNKNOWN) or token in self._marks

    def is_added(self, token: int) -> bool:
        """Tell whether a token is matched whole in text, so that encoding begins afresh after it."""
        if not 0 <= token < len(self._texts):
            return False
        return self._types[token] is TokenType.USER_DEFINED or self.is_special(token)

    def token_bytes(self, token: int, *, special: bool) -> bytes:
        """Return a token's bytes; without `special`, none for a mark. None either for an id past the vocabulary."""
        if not 0 <= token < len(self._texts):
            return b""
        if self.is_special(token):
            return self._texts[token].encode() if special else b""
        return self._text_bytes(self._texts[token], self._types[token])

    def _text_bytes(self, text: str, kind: TokenType) -> bytes:
        if kind is TokenType.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind is TokenType.USER_DEFINED:
            return text.encode()
        if self._byte_level:
            return b"".join(_BYTES_OF_LETTERS.get(letter) or letter.encode() for letter in text)
        return (text.replace(SPACE, " ") if self._spells_spaces else text).encode()


def _check_byte_tokens(texts: list[str], types: list[TokenType]) -> None:
    valid = {f"<0x{value:02X}>" for value in range(256)}
    for index, kind in enumerate(types):
        if kind is TokenType.BYTE and texts[index] not in valid:
            raise BadTokenizer(f"{TOKENS}[{index}]: {texts[index]!r} is not the <0x0A> kind of text that a byte has")


def _letters() -> dict[str, bytes]:
    """Return GPT-2's alphabet: a byte that prints is its own letter, the others take letters from U+0100 on."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printing]
    letters = {chr(value): bytes([value]) for value in sorted(printing)}
    return letters | {chr(0x100 + index): bytes([value]) for index, value in enumerate(others)}


_BYTES_OF_LETTERS = _letters()
