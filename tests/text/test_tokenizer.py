from __future__ import annotations

import threading
import time

import pytest
from decodepool_worker.text.errors import NoTokenizer
from decodepool_worker.text.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.vocabularies import FIRST_PIECE, byte_bpe, byte_letters, spm

WORDS = ("hello", " hello", "world", " ", "  ", "\n\n", "don't", "123", "é", "赋")
PIECES = ("\u2581", "h", "e", "l", "o", "he", "ll", "hell", "hello", "\u2581hello", "\u2581\u2581", "é")

VOCABULARIES = {
    "byte-level BPE": byte_bpe(words=WORDS),
    "byte-level BPE, ignore_merges": byte_bpe("llama-bpe", words=WORDS),
    "SPM": spm(PIECES),
    "SPM without prefix": spm(PIECES) | {"tokenizer.ggml.add_space_prefix": False},
    "SPM of bytes alone": spm(()),
    "gemma4": byte_bpe(words=("ab",)) | {"tokenizer.ggml.model": "gemma4"},
}


def build(name: str) -> Tokenizer:
    return Tokenizer.from_metadata(VOCABULARIES[name])


SPELLABLE = [name for name in VOCABULARIES if name != "gemma4"]  # that one lacks most characters


@pytest.mark.parametrize("name", SPELLABLE)
@given(
    st.text(
        st.one_of(
            st.sampled_from("heloé \n\u00a0赋'<>/s123"), st.characters(codec="utf-8", exclude_characters="\u2581")
        )
    )
)
@settings(max_examples=100, deadline=None)
def test_decoding_gives_back_the_text_that_was_encoded(name: str, text: str) -> None:
    tokenizer = _cached(name)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert all(0 <= token < tokenizer.vocabulary_size for token in tokens)


_built: dict[str, Tokenizer] = {}


def _cached(name: str) -> Tokenizer:
    return _built.setdefault(name, build(name))


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("text", ["<s>", "</s>", "a<s>b", "<s></s><s>", "hello</s>", "<</s>>"])
def test_control_tokens_in_text_are_text_unless_asked_for(name: str, text: str) -> None:
    tokenizer = build(name)
    control = {token for token in range(tokenizer.vocabulary_size) if not tokenizer.token_bytes(token, special=False)}
    assert not control & set(tokenizer.encode(text, add_bos=False))
    marks = [token for token in tokenizer.encode(text, special=True, add_bos=False) if token in control]
    assert len(marks) == text.count("<s>") + text.count("</s>")


def test_a_control_token_is_text_even_where_words_that_are_tokens_skip_the_merges() -> None:
    tokenizer = Tokenizer.from_metadata(byte_bpe("llama-bpe", marks=("stop", "end")))
    assert tokenizer.decode(tokenizer.encode("stop", add_bos=False)) == "stop"
    assert tokenizer.encode("stop", special=True, add_bos=False) == [256]


def test_a_control_token_is_text_even_where_pieces_would_merge_to_it() -> None:
    tokenizer = Tokenizer.from_metadata(spm(("\u2581", "<", "s", ">", "<s")))
    assert 1 not in tokenizer.encode("<s>", add_bos=False)


def test_an_end_of_turn_that_a_file_calls_user_defined_cannot_be_typed() -> None:
    metadata = byte_bpe(marks=("<s>", "</s>", "<|im_end|>"))
    metadata["tokenizer.ggml.token_type"] = [1] * 256 + [3, 3, 4]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert 258 in tokenizer.eos_ids
    assert 258 not in tokenizer.encode("bye<|im_end|>")


def test_user_defined_tokens_are_matched_whole_and_are_text() -> None:
    metadata = byte_bpe(marks=("<s>", "</s>", "<tool call>"))
    metadata["tokenizer.ggml.token_type"] = [1] * 256 + [3, 3, 4]
    tokenizer = Tokenizer.from_metadata(metadata)
    tokens = tokenizer.encode("a<tool call>b")
    assert tokens == [ord("a") - 0, 258, ord("b")]
    assert tokenizer.decode(tokens) == "a<tool call>b"


@pytest.mark.parametrize(
    ("add_bos", "text", "expected"),
    [
        (None, "h", [1, FIRST_PIECE, FIRST_PIECE + 1]),
        (True, "h", [1, FIRST_PIECE, FIRST_PIECE + 1]),
        (False, "h", [FIRST_PIECE, FIRST_PIECE + 1]),
        (None, "<s>h", [1, FIRST_PIECE, FIRST_PIECE + 1]),
        (True, "<s>h", [1, 1, FIRST_PIECE, FIRST_PIECE + 1]),
        (False, "<s>h", [1, FIRST_PIECE, FIRST_PIECE + 1]),
        (None, "", [1]),
        (False, "", []),
    ],
)
def test_bos_is_added_as_asked_and_by_default_once(add_bos: bool | None, text: str, expected: list[int]) -> None:
    assert build("SPM").encode(text, special=True, add_bos=add_bos) == expected


@pytest.mark.parametrize(
    ("pre", "stated", "expected"),
    [
        ("smollm", None, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("tekken", None, True),
        ("qwen2", None, False),
    ],
)
def test_a_file_that_does_not_say_gets_the_bos_of_its_family(pre: str, stated: bool | None, expected: bool) -> None:
    metadata = byte_bpe(pre) | ({} if stated is None else {"tokenizer.ggml.add_bos_token": stated})
    assert (Tokenizer.from_metadata(metadata).encode("a")[0] == 256) is expected


def test_a_file_without_bos_adds_none() -> None:
    metadata = byte_bpe("llama-bpe")
    del metadata["tokenizer.ggml.bos_token_id"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("a", add_bos=True) == [ord("a") - ord("!") + 33]
    assert tokenizer.bos_text == ""


def test_merges_go_by_rank_and_words_that_are_tokens_skip_them_where_the_family_says_so() -> None:
    metadata = byte_bpe(words=("ab", "bc", "abc"))
    assert metadata["tokenizer.ggml.merges"] == ["a b", "b c", "ab c"]
    metadata["tokenizer.ggml.merges"] = ["b c", "a b"]
    abc = 258
    assert Tokenizer.from_metadata(metadata).encode("abc") == [ord("a"), 257]
    metadata["tokenizer.ggml.pre"] = "llama-bpe"
    assert Tokenizer.from_metadata(metadata).encode("abc", add_bos=False) == [abc]


def test_spm_merges_go_by_score_then_by_id() -> None:
    pieces = ("a", "b", "c", "ab", "bc")
    first = Tokenizer.from_metadata(spm(pieces, (0, 0, 0, -1, -2)) | {"tokenizer.ggml.add_space_prefix": False})
    assert first.encode("abc", add_bos=False) == [FIRST_PIECE + 3, FIRST_PIECE + 2]
    other = Tokenizer.from_metadata(spm(pieces, (0, 0, 0, -2, -1)) | {"tokenizer.ggml.add_space_prefix": False})
    assert other.encode("abc", add_bos=False) == [FIRST_PIECE, FIRST_PIECE + 4]
    level = Tokenizer.from_metadata(spm(pieces, (-1000.0,) * 5) | {"tokenizer.ggml.add_space_prefix": False})
    assert level.encode("abc", add_bos=False) == [FIRST_PIECE + 3, FIRST_PIECE + 2]


def test_spm_spells_what_it_has_no_piece_for_in_bytes() -> None:
    tokenizer = build("SPM without prefix")
    assert tokenizer.encode("赋", add_bos=False) == [3 + value for value in "赋".encode()]


def test_a_lone_surrogate_is_encoded_as_the_replacement_character() -> None:
    tokenizer = build("SPM of bytes alone")
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "\U0001f600"


@pytest.mark.parametrize("ends", [("<|im_end|>",), ("<|eot_id|>", "<|eom_id|>"), ("<|end|>", "<|endoftext|>")])
def test_end_of_turn_marks_are_known_by_their_text(ends: tuple[str, ...]) -> None:
    tokenizer = Tokenizer.from_metadata(byte_bpe(marks=("<s>", "</s>", *ends)))
    assert tokenizer.eos_ids == {257, *range(258, 258 + len(ends))}


def test_harmonys_end_of_message_does_not_end_the_turn() -> None:
    tokenizer = Tokenizer.from_metadata(byte_bpe(marks=("<s>", "</s>", "<|return|>", "<|call|>", "<|end|>")))
    assert tokenizer.eos_ids == {257, 258, 259}


def test_ids_past_the_vocabulary_of_a_padded_matrix_have_no_text() -> None:
    tokenizer = build("byte-level BPE")
    size = tokenizer.vocabulary_size
    assert tokenizer.decode([ord("a"), size, size + 100, ord("b")]) == "ab"


def test_token_bytes_are_the_bytes_of_text() -> None:
    tokenizer = build("byte-level BPE")
    assert [tokenizer.token_bytes(token) for token in range(256)] == [bytes([value]) for value in range(256)]
    assert tokenizer.token_bytes(tokenizer.vocabulary_size - 1) == b"</s>"
    assert tokenizer.token_bytes(tokenizer.vocabulary_size - 1, special=False) == b""


@pytest.mark.parametrize(
    "metadata", [{"tokenizer.ggml.model": "none"}, {"tokenizer.ggml.model": "no_vocab"}, {}], ids=str
)
def test_a_model_without_tokenizer_serves_tokens_and_says_so_for_text(metadata: dict[str, object]) -> None:
    tokenizer = Tokenizer.from_metadata(metadata)
    with pytest.raises(NoTokenizer, match="send and read tokens"):
        tokenizer.encode("text")
    with pytest.raises(NoTokenizer):
        tokenizer.decode([1])
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push(5), detokenizer.finish()] == ["", ""]
    assert (tokenizer.eos_ids, tokenizer.bos_id, tokenizer.vocabulary_size) == (frozenset(), None, 0)


@pytest.mark.parametrize("name", SPELLABLE)
@pytest.mark.parametrize("unit", ["a", " ", "\n ", "<", "<s>", "a1 ", "A", "!", "\u00e9"])
def test_long_monotonous_text_takes_no_longer_than_any_other(name: str, unit: str) -> None:
    text = (unit * 200_000)[:200_000]
    started = time.perf_counter()
    tokens = build(name).encode(text, special=True)
    assert len(tokens) > 1000
    assert time.perf_counter() - started < 5


def test_encoding_leaves_the_interpreter_to_others() -> None:
    tokenizer = build("byte-level BPE")
    text = "The quick brown fox jumps over 12 lazy dogs. " * 20_000
    worker = threading.Thread(target=tokenizer.encode, args=(text,))
    beats = 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        beats += 1
    assert beats > 20  # with the GIL kept there would be one, at the end


def test_the_alphabet_of_bytes_is_gpt2s() -> None:
    assert [byte_letters()[value] for value in b" \n\x00~"] == ["Ġ", "Ċ", "Ā", "~"]
