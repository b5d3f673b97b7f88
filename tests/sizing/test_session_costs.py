"""What a session of each published model costs, against sums made by hand."""

from __future__ import annotations

from math import ceil

import pytest
from decodepool_sizing.kv import PAGE_TOKENS, KVType
from decodepool_sizing.session_bytes import growing_bytes_per_token, kv_types, page_bytes, session_bytes, window_bytes
from decodepool_sizing.shape import CacheRows, ModelShape, read_shape

from tests.sizing.models import MODELS, STEP_PATTERN, VOCABULARY, header_of

F16_COSTS = {
    # model: bytes a token, bytes of full windows, bytes of fixed state
    "SmolLM2-135M": (23_040, 0, 0),
    "Qwen2.5-0.5B": (12_288, 0, 0),
    "Llama-3.1-8B": (131_072, 0, 0),
    "Mixtral-8x7B": (131_072, 0, 0),
    "Qwen3-8B": (147_456, 0, 0),
    "Qwen3-30B-A3B": (98_304, 0, 0),
    "gemma3-270m": (3_072, 7_864_320, 0),
    "gpt-oss-20b": (24_576, 3_145_728, 0),
    "Qwen3.5-9B": (32_768, 0, 52_690_944),
    "Qwen3.5-35B-A3B": (20_480, 0, 65_863_680),
    "Step-3.5-Flash": (49_152, 135_168 * 512, 0),
    "MiniMax-M3": (122_880 + 57 * 256, 0, 0),
    "DeepSeek-V3": (70_272, 0, 0),
    "DeepSeek-V4-Flash": (6_880, 5_636_096, 12_206_080),
    "gemma4-E2B": (3 * 2_048, 12 * 1_024 * 512, 0),
    "gemma4-26B-A4B": (5 * 2 * 2_048, 25 * 8 * 1_024 * 1_024, 0),
}


def shape_of(name: str) -> ModelShape:
    return read_shape(header_of(*MODELS[name]))


def test_every_model_has_its_sum() -> None:
    assert set(F16_COSTS) == set(MODELS)


@pytest.mark.parametrize("name", F16_COSTS)
def test_a_session_costs_what_its_shape_says(name: str) -> None:
    shape = shape_of(name)
    found = growing_bytes_per_token(shape, KVType.F16), window_bytes(shape, KVType.F16), shape.fixed_state_bytes
    assert found == F16_COSTS[name]


@pytest.mark.parametrize("name", F16_COSTS)
def test_other_types_cost_in_proportion(name: str) -> None:
    shape = shape_of(name)
    full = growing_bytes_per_token(shape, KVType.F16)
    assert growing_bytes_per_token(shape, KVType.F32) == 2 * full
    assert growing_bytes_per_token(shape, KVType.Q8_0) == ceil(full / 2 * 34 / 32)


@pytest.mark.parametrize("name", F16_COSTS)
@pytest.mark.parametrize("context", [1, 63, 64, 65, 4096, 100_000])
def test_a_session_reserves_whole_pages(name: str, context: int) -> None:
    shape = shape_of(name)
    pages = ceil(context / PAGE_TOKENS)
    expected = shape.fixed_state_bytes + 4 * pages + 4 * VOCABULARY
    for rows in shape.cache_rows:
        reserved = pages if rows.window is None else min(pages, ceil(min(context, rows.window) / PAGE_TOKENS) + 1)
        expected += ceil(reserved * PAGE_TOKENS / rows.tokens_per_row) * rows.heads * rows.length * 2
    assert session_bytes(shape, context, KVType.F16) == expected


def test_a_page_is_what_a_session_grows_by() -> None:
    shape = shape_of("gpt-oss-20b")
    long, longer = (session_bytes(shape, tokens, KVType.F16) for tokens in (8192, 8192 + 64))
    assert longer - long == page_bytes(shape, KVType.F16) + 4


def test_heads_of_part_of_a_block_cannot_be_kept_as_q8_0() -> None:
    keys = MODELS["SmolLM2-135M"][1] | {"attention.key_length": 48, "attention.value_length": 48}
    shape = read_shape(header_of("llama", keys))
    assert kv_types(shape) == (KVType.F16, KVType.F32)
    with pytest.raises(ValueError, match="q8_0: a head of 48 elements is not whole blocks of 32"):
        session_bytes(shape, 64, KVType.Q8_0)


def test_blocks_that_predict_are_not_run() -> None:
    shape = shape_of("Step-3.5-Flash")
    assert (shape.block_count, shape.prediction_blocks) == (45, 3)
    assert shape.windows == tuple(512 if windowed else None for windowed in STEP_PATTERN)
    assert shape.head_counts == tuple(96 if windowed else 64 for windowed in STEP_PATTERN)


def test_layers_that_share_keys_keep_none() -> None:
    shape = shape_of("gemma4-E2B")
    assert [bool(layer.cache) for layer in shape.layers] == [True] * 15 + [False] * 20
    assert {layer.key_length for layer in shape.layers if layer.window} == {256}
    assert shape.attention_scale == 1.0


def test_recurrent_layers_keep_state_and_no_rows() -> None:
    layers = shape_of("Qwen3.5-9B").layers
    assert [bool(layer.cache) for layer in layers] == [(i + 1) % 4 == 0 for i in range(32)]
    assert {layer.state_bytes for layer in layers if not layer.cache} == {98_304 + 2_097_152}


def test_a_list_of_recurrent_layers_wins_over_the_interval() -> None:
    architecture, keys = MODELS["Qwen3.5-9B"]
    flags = (True,) * 31 + (False,)
    shape = read_shape(header_of(architecture, keys | {"attention.recurrent_layers": flags}))
    assert [not layer.cache for layer in shape.layers] == list(flags)


def test_latents_are_kept_once_for_all_heads() -> None:
    shape = shape_of("DeepSeek-V3")
    assert shape.layers[0].cache == (CacheRows("latents", 1, 576),)
    assert shape.attention_scale == pytest.approx(192**-0.5)
