from __future__ import annotations

import math

import pytest
from decodepool_worker.text.errors import BadTokenizer
from decodepool_worker.text.tokenizer import Tokenizer

from tests.text.vocabularies import Metadata, byte_bpe, spm

T = "tokenizer.ggml."

# vocabulary, key, its bad value, what the message must name besides the key
CASES = [
    pytest.param(byte_bpe(), "pre", "martian", "'martian'", id="unknown pre"),
    pytest.param(byte_bpe(), "pre", None, "absent", id="no pre"),
    pytest.param(byte_bpe(), "pre", 7, "int", id="pre is a number"),
    pytest.param(byte_bpe(), "model", "t5", "'t5'", id="unknown model"),
    pytest.param(byte_bpe(), "model", ["gpt2"], "list", id="model is a list"),
    pytest.param(byte_bpe(), "tokens", None, "absent", id="no tokens"),
    pytest.param(byte_bpe(), "tokens", [], "empty", id="empty tokens"),
    pytest.param(byte_bpe(), "tokens", "abc", "str", id="tokens are one text"),
    pytest.param(byte_bpe(), "tokens", ["a", 5], "[1]", id="a token is a number"),
    pytest.param(byte_bpe(), "tokens", ["a", "b", "a"], "[2]: 'a' is token 0", id="a token twice"),
    pytest.param(byte_bpe(), "token_type", [1], "1 types for 258 tokens", id="too few types"),
    pytest.param(byte_bpe(), "token_type", ["x"] * 258, "[0]", id="types are texts"),
    pytest.param(byte_bpe(), "token_type", 3, "int", id="types are one number"),
    pytest.param(byte_bpe(), "token_type", [6] * 258, "tokens[0]", id="bytes that are not written so"),
    pytest.param(byte_bpe(), "merges", None, "absent", id="no merges"),
    pytest.param(byte_bpe(), "merges", ["ab"], "[0]: 'ab'", id="a merge of one piece"),
    pytest.param(byte_bpe(), "merges", ["a zz"], "[0]: 'zz'", id="a merge of a piece that is no token"),
    pytest.param(byte_bpe(), "merges", ["a b"], "[0]: 'ab'", id="a merge to what is no token"),
    pytest.param(byte_bpe(), "merges", [3], "[0]", id="a merge is a number"),
    pytest.param(byte_bpe(), "bos_token_id", 258, "258", id="bos past the end"),
    pytest.param(byte_bpe(), "bos_token_id", -1, "-1", id="bos below zero"),
    pytest.param(byte_bpe(), "eos_token_id", "2", "str", id="eos is a text"),
    pytest.param(byte_bpe(), "eot_token_id", 2**32 - 1, str(2**32 - 1), id="eot past the end"),
    pytest.param(byte_bpe(), "eos_token_id", True, "bool", id="eos is a flag"),
    pytest.param(byte_bpe(), "add_bos_token", 1, "int", id="add_bos is a number"),
    pytest.param(spm(), "scores", None, "0 scores for 260 tokens", id="no scores"),
    pytest.param(spm(), "scores", [0.0], "1 scores for 260 tokens", id="too few scores"),
    pytest.param(spm(), "scores", [math.nan] * 260, "NaN", id="scores are NaN"),
    pytest.param(spm(), "scores", ["x"] * 260, "[0]", id="scores are texts"),
    pytest.param(spm(), "unknown_token_id", 260, "260", id="unk past the end"),
]


@pytest.mark.parametrize(("metadata", "key", "value", "named"), CASES)
def test_bad_metadata_is_refused_by_one_line_that_names_the_key(
    metadata: Metadata, key: str, value: object, named: str
) -> None:
    broken = {**metadata, T + key: value}
    if value is None:
        del broken[T + key]
    with pytest.raises(BadTokenizer) as refused:
        Tokenizer.from_metadata(broken)
    message = str(refused.value)
    assert message.startswith("tokenizer.ggml.")
    assert key.split("_", maxsplit=1)[0] in message or key == "token_type"
    assert named in message
    assert "\n" not in message


def test_sound_metadata_passes() -> None:
    Tokenizer.from_metadata(byte_bpe())
    Tokenizer.from_metadata(spm())


def test_padding_with_empty_tokens_is_lawful() -> None:
    metadata = byte_bpe()
    metadata[T + "tokens"] = [*byte_bpe()[T + "tokens"], "", ""]  # type: ignore[misc]
    metadata[T + "token_type"] = [1] * 256 + [3, 3, 5, 5]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.vocabulary_size == 260
    assert tokenizer.decode([258, ord("a"), 259]) == "a"
