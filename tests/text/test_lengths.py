"""What is told of a long text before it is encoded, and what its pieces encode to, is what the whole encodes to."""

from __future__ import annotations

import random

import pytest
from decodepool_worker.text import cuts
from decodepool_worker.text.errors import TextTooLong
from decodepool_worker.text.lengths import Lengths
from decodepool_worker.text.pieces import Pieces
from decodepool_worker.text.pretokenizers import PRE_TOKENIZERS
from decodepool_worker.text.tokenizer import Tokenizer

from tests.text.vocabularies import Metadata, byte_bpe, spm

WORDS = ("the", " the", " cat", "  ", "\n\n", "it's", "'s", "123", "ab ")
SCRAPS = [" ", "  ", "\n", "the", "Cat", "it's", "'S", "12345", "漢字", "é", "e\u0301", "!?", "_", "\t", "<s>"]
SCRAPS += ["\N{SLIGHTLY SMILING FACE}", "\u2581"]
SPACED: Metadata = {
    **spm(("\u2581", "t", "h", "e", "\u2581t", "he", "\u2581the", "\n", "\n\n")),
    "tokenizer.ggml.model": "gemma4",
    "tokenizer.ggml.merges": ["\u2581 t", "h e", "\u2581t he", "\n \n"],
}
VOCABULARIES = {
    **{pre: byte_bpe(pre, WORDS) for pre in PRE_TOKENIZERS},
    "spm": spm(("\u2581", "\u2581\u2581", "th", "the", "\u2581the", "1")),
    "spaced": SPACED,
}


def texts(count: int, scraps: int) -> list[str]:
    rng = random.Random(5)
    return ["".join(rng.choices(SCRAPS, k=scraps)) for _ in range(count)]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_pieces_encode_to_what_the_whole_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_metadata(VOCABULARIES[name])
    whole = [tokenizer.encode(text, special=special) for text in texts(60, 80) for special in (False, True)]
    monkeypatch.setattr(cuts, "PIECE_CHARACTERS", 2)
    assert [tokenizer.encode(text, special=special) for text in texts(60, 80) for special in (False, True)] == whole


@pytest.mark.parametrize(("name", "least"), [("smollm", 100), ("spaced", 100), ("spm", 1)])
def test_a_long_text_is_cut_where_nothing_looks_across(name: str, least: int) -> None:
    vocabulary = Tokenizer.from_metadata(VOCABULARIES[name]).vocabulary
    assert vocabulary is not None
    text = "some words \nof a line" * 20 * cuts.PIECE_CHARACTERS
    assert len(list(cuts.Cuts(vocabulary).pieces(text))) >= least


def test_a_token_that_lies_across_a_place_forbids_its_cuts() -> None:
    vocabulary = Tokenizer.from_metadata(byte_bpe(marks=("<s>", "end of"))).vocabulary
    assert vocabulary is not None
    assert len(list(cuts.Cuts(vocabulary).pieces("words " * cuts.PIECE_CHARACTERS))) == 1


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_least_count_is_never_above_the_count(name: str) -> None:
    tokenizer = Tokenizer.from_metadata(VOCABULARIES[name])
    assert tokenizer.vocabulary is not None
    lengths = Lengths(tokenizer.vocabulary, Pieces(tokenizer.vocabulary))
    for text in [*texts(100, 30), *(scrap * 50 for scrap in SCRAPS)]:
        for special in (False, True):
            count = len(tokenizer.encode(text, special=special, add_bos=False))
            assert 0 < lengths.least_tokens(text, special=special) <= count or not text, text


@pytest.mark.parametrize("text", ["1" * 1_000_000, "the cat " * 100_000], ids=["before it is encoded", "while it is"])
def test_a_text_beyond_its_limit_is_not_encoded_to_its_end(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_metadata(byte_bpe("smollm", (*WORDS, "aceht " * 10)))
    encoded: list[int] = []
    plain = tokenizer._encode_plain

    def counting(texts: list[str]) -> list[list[int]]:
        encoded.extend(map(len, texts))
        return plain(texts)

    monkeypatch.setattr(tokenizer, "_encode_plain", counting)
    with pytest.raises(TextTooLong, match="the context holds 30000"):
        tokenizer.encode(text, limit_tokens=30_000)
    assert sum(encoded) < len(text) / 2


def test_where_an_unknown_token_swallows_text_nothing_is_foretold() -> None:
    bytes_less = spm(("\u2581", "a"))
    bytes_less["tokenizer.ggml.token_type"] = [2, 3, 3] + [1] * 258
    tokenizer = Tokenizer.from_metadata(bytes_less)
    assert tokenizer.vocabulary is not None
    assert Lengths(tokenizer.vocabulary, Pieces(tokenizer.vocabulary)).least_tokens("漢" * 99, special=False) == 0
