from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from decodepool_sizing.architectures.registry import ARCHITECTURES
from decodepool_sizing.errors import BadModelFile, UnknownArchitecture
from decodepool_sizing.header import read_header
from decodepool_sizing.shape import ModelShape, read_shape
from decodepool_sizing.tokenizer_facts import tokenizer_facts

from tests.sizing.gguf_bytes import BytesReader, tiny
from tests.sizing.models import MODELS, header_of


def shape_with(**changes: Any) -> ModelShape:
    keys = {name.replace("__", "."): value for name, value in changes.items()}
    return read_shape(header_of("llama", MODELS["Llama-3.1-8B"][1] | keys))


def test_every_architecture_is_tried_here() -> None:
    assert {architecture for architecture, _ in MODELS.values()} == set(ARCHITECTURES) - {"qwen3next"}


def test_a_shape_is_read_from_bytes() -> None:
    shape = read_shape(read_header(BytesReader(tiny())))
    assert (shape.block_count, shape.embedding_length, shape.vocabulary_size, shape.context_length) == (2, 64, 40, 256)
    assert (shape.head_counts, shape.kv_head_counts, shape.key_length) == ((4, 4), (2, 2), 16)
    assert shape.attention_scale == 0.25
    assert shape.rope.base == 10_000
    assert not shape.tied_embeddings
    assert read_shape(read_header(BytesReader(tiny(edit={"output.weight": None})))).tied_embeddings


def test_a_vocabulary_may_be_padded() -> None:
    rows = {"dims": (64, 48)}
    header = read_header(BytesReader(tiny(edit={"token_embd.weight": rows, "output.weight": rows})))
    assert read_shape(header).vocabulary_size == 48
    assert tokenizer_facts(header).vocabulary_size == 40


def test_an_unknown_architecture_is_told_which_are_known() -> None:
    with pytest.raises(UnknownArchitecture, match=r"general\.architecture: 'mamba' is not known; known are deepseek2,"):
        read_shape(read_header(BytesReader(tiny({"general.architecture": "mamba"}))))


FILE_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no architecture": ({"general.architecture": None}, "general.architecture: missing"),
    "architecture a number": ({"general.architecture": 3}, "general.architecture: missing, or not a string"),
    "a part of a model": ({"split.count": 4}, "split.count: this file is one of 4 parts"),
    "more tokens than rows": (
        {"tokenizer.ggml.tokens": ["x"] * 41},
        "tokenizer.ggml.tokens: 41 tokens, but token_embd.weight has 40 rows",
    ),
    "another width": (
        {"llama.embedding_length": 128},
        r"token_embd\.weight: expected \[128, vocabulary\], found \[64,",
    ),
}


@pytest.mark.parametrize("name", FILE_FAULTS)
def test_a_file_that_is_not_one_model_is_refused(name: str) -> None:
    metadata, text = FILE_FAULTS[name]
    with pytest.raises(BadModelFile, match=text):
        read_shape(read_header(BytesReader(tiny(metadata))))


KEY_FAULTS: list[tuple[str, Any, str]] = [
    ("block_count", None, "missing"),
    ("block_count", 0, "0 is not in the range 1 to 4096"),
    ("block_count", 10**9, "1000000000 is not in the range"),
    ("block_count", "32", "'32' is not an integer"),
    ("block_count", True, "True is not an integer"),
    ("nextn_predict_layers", 32, "nothing is left of it after 32 prediction blocks"),
    ("context_length", 0, "0 is not in the range"),
    ("embedding_length", -1, "-1 is not in the range"),
    ("attention.head_count", 0, "0 for every layer"),
    ("attention.head_count", (32,) * 31, "31 values for 32 layers"),
    ("attention.head_count", (32,) * 31 + (0,), "0 for layer 31, which attends"),
    ("attention.head_count", 32.0, "32.0 is not an integer"),
    ("attention.head_count_kv", 5, "5 does not divide the 32 query heads of layer 0"),
    ("attention.head_count_kv", 0, "0 for layer 0, which attends"),
    ("attention.key_length", 0, "0 is not in the range"),
    ("attention.scale", nan, "nan is not in the range"),
    ("attention.scale", -0.5, "-0.5 is not in the range"),
    ("attention.layer_norm_rms_epsilon", None, "missing"),
    ("attention.layer_norm_rms_epsilon", nan, "nan is not in the range"),
    ("attention.layer_norm_rms_epsilon", -1e-5, "-1e-05 is not in the range"),
    ("attention.layer_norm_rms_epsilon", 0.0, "0.0 is not in the range"),
    ("attention.layer_norm_rms_epsilon", 2.0, "2.0 is not in the range"),
    ("rope.freq_base", nan, "nan is not in the range"),
    ("rope.freq_base", inf, "inf is not in the range"),
    ("rope.freq_base", 0.0, "0.0 is not in the range"),
    ("rope.freq_base", "10000", "'10000' is not a number"),
    ("rope.dimension_count", 127, "127 is odd"),
    ("rope.dimension_count", 256, "256 is more than the key length, 128"),
    ("rope.scaling.type", "longrope", "'longrope' is not known; known are none, linear and yarn"),
    ("rope.scaling.type", 1, "1 is not a string"),
    ("expert_count", 8, "expert_used_count: missing"),
]


@pytest.mark.parametrize(("key", "value", "text"), KEY_FAULTS, ids=[f"{k} {v!r:.20}" for k, v, _ in KEY_FAULTS])
def test_a_number_that_makes_no_model_is_refused_by_key(key: str, value: Any, text: str) -> None:
    keys = MODELS["Llama-3.1-8B"][1] | {key: value}
    if value is None:
        del keys[key]
    with pytest.raises(BadModelFile, match=text) as caught:
        read_shape(header_of("llama", keys))
    assert str(caught.value).startswith("llama.")


OWN_FAULTS: dict[str, tuple[str, str, Any, str]] = {
    "gpt-oss without a window": ("gpt-oss-20b", "attention.sliding_window", None, "attention.sliding_window: missing"),
    "step35 without a pattern": ("Step-3.5-Flash", "attention.sliding_window_pattern", None, "pattern: missing"),
    "a pattern too short": ("Step-3.5-Flash", "attention.sliding_window_pattern", (True,), "1 values for 45 layers"),
    "a pattern of twos": ("Step-3.5-Flash", "attention.sliding_window_pattern", (2,) * 45, "not a list of booleans"),
    "half of an odd half": ("Step-3.5-Flash", "rope.dimension_count", 66, "half of 66 is odd"),
    "all layers shared": ("gemma4-E2B", "attention.shared_kv_layers", 35, "35 of 35 layers leaves none to share from"),
    "an inner size of its own": ("Qwen3.5-9B", "ssm.inner_size", 1, "1 is not 32 value heads of 128"),
    "no latent": ("DeepSeek-V3", "attention.kv_lora_rank", None, "attention.kv_lora_rank: missing"),
    "no ratios": ("DeepSeek-V4-Flash", "attention.compress_ratios", None, "attention.compress_ratios: missing"),
    "no indexer": ("MiniMax-M3", "attention.indexer.key_length", None, "attention.indexer.key_length: missing"),
}


@pytest.mark.parametrize("name", OWN_FAULTS)
def test_an_architecture_holds_its_own_keys_to_its_rules(name: str) -> None:
    model, key, value, text = OWN_FAULTS[name]
    architecture, keys = MODELS[model]
    changed = {k: v for k, v in (keys | {key: value}).items() if v is not None}
    with pytest.raises(BadModelFile, match=text):
        read_shape(header_of(architecture, changed))


def test_scaling_is_read() -> None:
    scaling = shape_with(
        rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=32_768
    ).rope.scaling
    assert (scaling.kind, scaling.factor, scaling.original_context_length) == ("yarn", 4.0, 32_768)
    linear = shape_with(rope__scaling__type="linear", rope__scaling__factor=8.0).rope.scaling
    assert (linear.kind, linear.factor) == ("linear", 8.0)


def test_scaling_stretches_a_context_that_the_file_leaves_unstretched() -> None:
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    assert shape_with(
        context_length=32_768, rope__scaling__original_context_length=32_768, **keys
    ).max_context_tokens == (131_072)
    assert shape_with(rope__scaling__original_context_length=8192, **keys).max_context_tokens == 131_072
    assert shape_with(context_length=4096).max_context_tokens == 4096


def test_an_attention_scale_of_its_own_wins() -> None:
    assert shape_with(attention__scale=0.0078125).attention_scale == 0.0078125
    assert shape_with(attention__scale=0.0).attention_scale == pytest.approx(128**-0.5)


def test_gemma3_27b_alone_scales_by_the_embeddings_share() -> None:
    architecture, keys = MODELS["gemma3-270m"]
    large = keys | {"block_count": 62, "embedding_length": 5376, "attention.head_count": 32}
    assert read_shape(header_of(architecture, large)).attention_scale == pytest.approx(168**-0.5)
    assert read_shape(header_of(architecture, keys)).attention_scale == pytest.approx(256**-0.5)
