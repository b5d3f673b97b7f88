from __future__ import annotations

import random

import pytest
from decodepool_worker.text.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st

from tests.text.vocabularies import FIRST_PIECE, byte_bpe, spm

BYTES = Tokenizer.from_metadata(byte_bpe())
SPM = Tokenizer.from_metadata(spm(("\u2581", "a", "b", "\u2581a", "\u2581b")))
SPACE, A, B, SPACE_A, SPACE_B = range(FIRST_PIECE, FIRST_PIECE + 5)
BOS, EOS = 256, 257

TEXTS = {
    "three bytes": "赋",
    "another three": "歪",
    "a family of seven characters": "👩‍👩‍👧",
    "combining mark": "e\u0301",
    "four bytes": "\U0001f600",
}
RAW = {
    "lone FF": (b"a\xffb", "a\ufffdb"),
    "overlong": (b"\xc0\x80", "\ufffd\ufffd"),
    "surrogate": (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
    "cut at the end": ("赋".encode()[:2], "\ufffd"),
    "cut, then another character": ("赋".encode()[:2] + "歪".encode(), "\ufffd歪"),
    "continuation alone": (b"\x80", "\ufffd"),
    "above U+10FFFF": (b"\xf4\x90\x80\x80", "\ufffd" * 4),
}


def stream(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*map(detokenizer.push, tokens), detokenizer.finish()]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_characters_come_out_whole(text: str) -> None:
    pieces = stream(BYTES, list(text.encode()))
    assert "".join(pieces) == text
    assert all(piece in ("", *text) for piece in pieces)


@pytest.mark.parametrize(("data", "text"), RAW.values(), ids=RAW.keys())
def test_invalid_bytes_become_replacement_characters_by_pythons_rule(data: bytes, text: str) -> None:
    assert data.decode("utf-8", "replace") == text
    assert "".join(stream(BYTES, list(data))) == text == BYTES.decode(list(data))


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_of_noise_is_the_decoding_of_the_whole(seed: int) -> None:
    data = random.Random(seed).randbytes(2000)
    pieces = stream(BYTES, list(data))
    assert "".join(pieces) == data.decode("utf-8", "replace")
    for piece in pieces:
        piece.encode("utf-8")  # no piece holds half a character


@given(st.lists(st.sampled_from([SPACE, A, B, SPACE_A, SPACE_B, 1, 2, 0, 3 + 0xE8, 3 + 0xB5, 3 + 0x8B, 400])))
def test_pieces_joined_are_the_whole_whatever_the_tokens(tokens: list[int]) -> None:
    assert "".join(stream(SPM, tokens)) == SPM.decode(tokens)


@pytest.mark.parametrize("special", [False, True])
def test_marks_show_only_when_asked_for(special: bool) -> None:
    shown = BYTES.decode([BOS, *b"hi", EOS], special=special)
    assert shown == ("<s>hi</s>" if special else "hi")


def test_a_mark_inside_a_character_does_not_end_it() -> None:
    first, *rest = "赋".encode()
    assert BYTES.decode([first, BOS, *rest]) == "赋"


# The space that encoding puts in front, by what comes before it.
SPACES = [
    pytest.param([SPACE_A, SPACE_B], "a b", id="start of a session"),
    pytest.param([1, SPACE_A, SPACE_B], "a b", id="after bos"),
    pytest.param([1, SPACE_A, 2, SPACE_B], "ab", id="after a mark inside"),
    pytest.param([SPACE, SPACE_A], " a", id="a text that begins with a space"),
    pytest.param([A, SPACE_B], "a b", id="no space to take off"),
    pytest.param([3 + 0x20, A], "a", id="a space that is a byte"),
]


@pytest.mark.parametrize(("tokens", "text"), SPACES)
def test_the_space_that_spm_puts_in_front_is_taken_off(tokens: list[int], text: str) -> None:
    assert SPM.decode(tokens) == text


def test_a_user_defined_token_of_spaces_keeps_them_all() -> None:
    metadata = spm(("\u2581", "a", "  "))
    metadata["tokenizer.ggml.token_type"] = [2, 3, 3] + [6] * 256 + [1, 1, 4]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("  a", add_bos=False) == [FIRST_PIECE + 2, FIRST_PIECE, FIRST_PIECE + 1]
    assert tokenizer.decode([FIRST_PIECE + 2, FIRST_PIECE, FIRST_PIECE + 1]) == "  a"


@pytest.mark.parametrize(("after", "text"), [(None, "a"), (1, "a"), (2, "a"), (A, " a"), (SPACE_B, " a")])
def test_a_detokenizer_that_continues_text_keeps_the_space(after: int | None, text: str) -> None:
    assert SPM.detokenizer(after=after).push(SPACE_A) == text


def test_tokens_after_finishing_begin_afresh() -> None:
    detokenizer = BYTES.detokenizer()
    detokenizer.push(0xE8)
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""
    assert detokenizer.push(ord("a")) == "a"
