"""Text to tokens and back, for one model.

Two rules hold throughout:
- Text never becomes a control token unless the caller says `special=True`; user-defined tokens are text, matched whole.
- `decode(encode(text)) == text` wherever the vocabulary can spell the text: decoding undoes what encoding added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from decodepool_worker.text.cuts import PIECE_CHARACTERS, Cuts
from decodepool_worker.text.detokenizer import Detokenizer
from decodepool_worker.text.encoders import build_encoder, build_splitter
from decodepool_worker.text.errors import NoTokenizer, TextTooLong
from decodepool_worker.text.lengths import Lengths
from decodepool_worker.text.metadata import Metadata
from decodepool_worker.text.pieces import Pieces
from decodepool_worker.text.vocabulary import Vocabulary, read_vocabulary


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads; encoding leaves the GIL to them.

    A model without a tokenizer has one of these too: its text calls raise NoTokenizer, its detokenizer gives no text.
    """

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self.vocabulary = vocabulary
        self.vocabulary_size = len(vocabulary.texts) if vocabulary else 0
        self.bos_id = vocabulary.bos_id if vocabulary else None
        self.eos_ids = vocabulary.eos_ids if vocabulary else frozenset[int]()
        self._pieces = Pieces(vocabulary)
        if vocabulary is not None:
            self._encoder = build_encoder(vocabulary)
            self._splitter, self._control_ids = build_splitter(vocabulary)
            self._lengths = Lengths(vocabulary, self._pieces)
            self._cuts = Cuts(vocabulary)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build from a GGUF header's metadata. Raises BadTokenizer, naming the key that is wrong."""
        return cls(read_vocabulary(Metadata(metadata)))

    def encode(
        self, text: str, *, special: bool = False, add_bos: bool | None = None, limit_tokens: int | None = None
    ) -> list[int]:
        """Return the tokens of `text`.

        `special`: control tokens spelled in `text` become those tokens: for templates, not for a user's words.
        `add_bos` None does what the file says, but not twice: text that begins with the token already gets no other.
        A lone surrogate, which is no character and which UTF-8 cannot hold, is encoded as U+FFFD.
        `limit_tokens`: raise TextTooLong as soon as a long text is known to have more; a short one is returned anyway.
        """
        vocabulary = self._known()
        sound = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        ids = self._encode_within(sound, special, limit_tokens)
        wanted = vocabulary.add_bos and ids[:1] != [vocabulary.bos_id] if add_bos is None else add_bos
        if wanted and vocabulary.bos_id is not None:
            return [vocabulary.bos_id, *ids]
        return ids

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """Return the text of a whole session's tokens, as a detokenizer from its start streams it."""
        self._known()
        detokenizer = self.detokenizer(special=special)
        return "".join([*map(detokenizer.push, tokens), detokenizer.finish()])

    def detokenizer(self, *, after: int | None = None, special: bool = False) -> Detokenizer:
        """Return a fresh detokenizer for the tokens that follow token `after` (None: for a session's first)."""
        return Detokenizer(self._pieces, after=after, special=special)

    def token_bytes(self, token: int, *, special: bool = True) -> bytes:
        """Return the bytes that a token stands for; none for an id past the vocabulary, which padded matrices have."""
        return self._pieces.token_bytes(token, special=special)

    @cached_property
    def bos_text(self) -> str:
        """How the beginning-of-text token is spelled, for templates; empty if there is none."""
        return self._spelling(self.bos_id)

    @cached_property
    def eos_text(self) -> str:
        """How the file's own end-of-text token is spelled, for templates; empty if there is none."""
        return self._spelling(self.vocabulary.eos_id if self.vocabulary else None)

    def _spelling(self, token: int | None) -> str:
        return self.vocabulary.texts[token] if self.vocabulary and token is not None else ""

    def _known(self) -> Vocabulary:
        if self.vocabulary is None:
            raise NoTokenizer
        return self.vocabulary

    def _encode_within(self, text: str, special: bool, limit_tokens: int | None) -> list[int]:
        if limit_tokens is not None and len(text) > PIECE_CHARACTERS:
            least = self._lengths.least_tokens(text, special=special)
            if least > limit_tokens:
                raise TextTooLong(least, limit_tokens)
        ids: list[int] = []
        for piece in self._cuts.pieces(text):
            if limit_tokens is not None and len(ids) > limit_tokens:
                raise TextTooLong(len(ids), limit_tokens)
            ids += self._encode_special(piece) if special else self._encode_plain([piece])[0]
        return ids

    def _encode_plain(self, texts: list[str]) -> list[list[int]]:
        # Those for batches, even of one text: of the library's calls they alone release the GIL.
        return [encoding.ids for encoding in self._encoder.encode_batch_fast(texts, add_special_tokens=False)]

    def _encode_special(self, text: str) -> list[int]:
        found = self._splitter.encode_batch([text], add_special_tokens=False)[0]
        marks = [self._control_ids[index] for index in found.ids]
        bounds = [0, *(edge for span in found.offsets for edge in span), len(text)]
        between = [text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
        encoded = self._encode_plain(between)
        ids = list(encoded[0])
        for mark, following in zip(marks, encoded[1:], strict=True):
            ids.append(mark)
            ids += following
        return ids
