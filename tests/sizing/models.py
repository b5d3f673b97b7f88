"""Headers of published models, from their public configurations: no weights, only what shapes are read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from decodepool_sizing.header import Header
from decodepool_sizing.shape import ModelShape, read_shape
from decodepool_sizing.tensor_table import TensorInfo
from decodepool_sizing.tensor_types import TensorType

VOCABULARY = 1024


def header_of(architecture: str, keys: Mapping[str, Any], tensors: Sequence[TensorInfo] = ()) -> Header:
    """A header with these keys under the architecture's prefix, and an embedding of 1024 rows."""
    width = keys["embedding_length"]
    embedding = TensorInfo("token_embd.weight", (width, VOCABULARY), TensorType.F32, 0, 4 * width * VOCABULARY)
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()}
    return Header(3, 32, {"general.architecture": architecture, **metadata}, (embedding, *tensors), 0, 1 << 40)


def keys_of(blocks: int, width: int, heads: Any, kv_heads: Any, key_length: int | None, **more: Any) -> dict[str, Any]:
    """The keys that every architecture has; `more` with `__` for a dot."""
    keys: dict[str, Any] = {
        "block_count": blocks,
        "context_length": 131_072,
        "embedding_length": width,
        "feed_forward_length": 4 * width,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    if key_length:
        keys |= {"attention.key_length": key_length, "attention.value_length": key_length}
    return keys | {name.replace("__", "."): value for name, value in more.items()}


def llama_shape(head_dimensions: int, vocabulary: int = 1024) -> ModelShape:
    shape = read_shape(header_of("llama", keys_of(2, 1024, 8, 4, head_dimensions)))
    return replace(shape, vocabulary_size=vocabulary)


def delta(key_heads: int, value_heads: int, state: int = 128) -> dict[str, Any]:
    """The keys of Gated DeltaNet layers, three of four."""
    return {
        "ssm.conv_kernel": 4,
        "ssm.state_size": state,
        "ssm.group_count": key_heads,
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": state * value_heads,
        "full_attention_interval": 4,
    }


def experts(count: int, used: int, width: int, **more: Any) -> dict[str, Any]:
    """The keys of a mixture of experts."""
    return {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": width, **more}


STEP_PATTERN = tuple(i % 4 != 0 for i in range(45))
GEMMA4_PATTERN = tuple((i + 1) % 5 != 0 for i in range(35))

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "SmolLM2-135M": ("llama", keys_of(30, 576, 9, 3, None)),
    "Qwen2.5-0.5B": ("qwen2", keys_of(24, 896, 14, 2, None)),
    "Llama-3.1-8B": ("llama", keys_of(32, 4096, 32, 8, None)),
    "Mixtral-8x7B": ("llama", keys_of(32, 4096, 32, 8, None) | {"expert_count": 8, "expert_used_count": 2}),
    "Qwen3-8B": ("qwen3", keys_of(36, 4096, 32, 8, 128)),
    "Qwen3-30B-A3B": ("qwen3moe", keys_of(48, 2048, 32, 4, 128) | experts(128, 8, 768)),
    "gemma3-270m": ("gemma3", keys_of(18, 640, 4, 1, 256, attention__sliding_window=512)),
    "gpt-oss-20b": ("gpt-oss", keys_of(24, 2880, 64, 8, 64, attention__sliding_window=128) | experts(32, 4, 2880)),
    "Qwen3.5-9B": ("qwen35", keys_of(32, 4096, 16, 4, 256) | delta(16, 32)),
    "Qwen3.5-35B-A3B": ("qwen35moe", keys_of(40, 2048, 16, 2, 256) | delta(16, 32) | experts(256, 8, 512)),
    "Step-3.5-Flash": (
        "step35",
        keys_of(
            48,
            4096,
            (*tuple(96 if windowed else 64 for windowed in STEP_PATTERN), 64, 64, 64),
            (8,) * 48,
            128,
            nextn_predict_layers=3,
            attention__sliding_window=512,
            attention__sliding_window_pattern=(*STEP_PATTERN, False, False, False),
        ),
    ),
    "MiniMax-M3": (
        "minimax-m3",
        keys_of(60, 6144, 64, 4, 128, leading_dense_block_count=3, attention__indexer__key_length=128)
        | experts(128, 4, 3072),
    ),
    "DeepSeek-V3": (
        "deepseek2",
        keys_of(61, 7168, 128, 1, None, attention__kv_lora_rank=512, rope__dimension_count=64)
        | {"attention.key_length": 576, "attention.value_length": 512}
        | {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
        | experts(256, 8, 2048),
    ),
    "DeepSeek-V4-Flash": (
        "deepseek4",
        keys_of(43, 4096, 64, 1, 512, attention__sliding_window=128, rope__dimension_count=64)
        | {"attention.compress_ratios": (0, 0, *(4 if i % 2 == 0 else 128 for i in range(2, 43)))}
        | {"attention.indexer.key_length": 128}
        | experts(256, 6, 2048),
    ),
    "gemma4-E2B": (
        "gemma4",
        keys_of(
            35,
            1536,
            8,
            tuple(1 for _ in GEMMA4_PATTERN),
            512,
            attention__key_length_swa=256,
            attention__value_length_swa=256,
            attention__sliding_window=512,
            attention__sliding_window_pattern=GEMMA4_PATTERN,
            attention__shared_kv_layers=20,
            embedding_length_per_layer_input=256,
        ),
    ),
    "gemma4-26B-A4B": (
        "gemma4",
        keys_of(
            30,
            2816,
            16,
            tuple(2 if (i + 1) % 6 == 0 else 8 for i in range(30)),
            512,
            attention__key_length_swa=256,
            attention__value_length_swa=256,
            attention__sliding_window=1024,
            attention__sliding_window_pattern=tuple((i + 1) % 6 != 0 for i in range(30)),
        )
        | experts(128, 8, 704),
    ),
}
