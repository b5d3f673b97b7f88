"""Tiny models of random weights, one for each variant of the architectures and each type of weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.tiny.blocks import RANDOM_BLOCKS, random_blocks

VOCABULARY = 96
LAYERS = 2
HEADS, KV_HEADS = 4, 2
CONTEXT = 4096
ORIGINAL_CONTEXT = 1024
SCALING_FACTOR = 4.0
ROPE_BASE = 10000.0
NORM_EPSILON = 1e-6

NO_TOKENIZER: Mapping[str, Any] = {"tokenizer.ggml.model": "none"}

Rope = Literal["none", "factors", "linear", "yarn"]


@dataclass(frozen=True)
class Tiny:
    """A model to be made. Norms and biases are F32 whatever the `weight_type`."""

    architecture: str = "llama"
    weight_type: str = "F32"
    rope: Rope = "none"
    tied: bool = False
    qkv_bias: bool = False
    other_bias: bool = False
    head_norms: bool = False
    head_length: int = 16
    vocabulary: int = VOCABULARY
    seed: int = 1

    def __str__(self) -> str:
        """The name in the report of a test."""
        flags = [name for name in ("tied", "qkv_bias", "other_bias") if getattr(self, name)]
        rope = [] if self.rope == "none" else [self.rope]
        return "-".join([self.architecture, self.weight_type, *rope, *flags])

    @property
    def width(self) -> int:
        """The embedding's: whole super-blocks of the k-quants, where those are the weights."""
        return HEADS * self.head_length

    @property
    def wide(self) -> int:
        """The feed-forward's."""
        return 256 if self.width == 256 else 96

    @property
    def factors(self) -> NDArray[np.float32] | None:
        """What each pair's frequency is divided by, where the file says so."""
        return np.linspace(1, 8, self.head_length // 2, dtype=np.float32) if self.rope == "factors" else None

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Names of the matrices and their (outputs, inputs)."""
        e, f, queries, keys = self.width, self.wide, HEADS * self.head_length, KV_HEADS * self.head_length
        found = {"token_embd": (self.vocabulary, e)}
        for layer in range(LAYERS):
            found |= {
                f"blk.{layer}.{name}": dims
                for name, dims in {
                    "attn_q": (queries, e), "attn_k": (keys, e), "attn_v": (keys, e), "attn_output": (e, queries),
                    "ffn_gate": (f, e), "ffn_up": (f, e), "ffn_down": (e, f),
                }.items()
            }  # fmt: skip
        return found if self.tied else found | {"output": (self.vocabulary, e)}

    def norms(self) -> dict[str, int]:
        """Names of the norm weights and their lengths."""
        found = {"output_norm": self.width}
        for layer in range(LAYERS):
            found |= {f"blk.{layer}.{name}": self.width for name in ("attn_norm", "ffn_norm")}
            if self.head_norms:
                found |= {f"blk.{layer}.{name}": self.head_length for name in ("attn_q_norm", "attn_k_norm")}
        return found

    def biases(self) -> dict[str, int]:
        """Names of the biases and their lengths."""
        chosen = [*(["attn_q", "attn_k", "attn_v"] if self.qkv_bias else [])]
        chosen += ["attn_output", "ffn_gate", "ffn_up", "ffn_down"] if self.other_bias else []
        return {name: dims[0] for name, dims in self.matrices().items() if name.rpartition(".")[2] in chosen}


def write(tiny: Tiny, path: Path, tokenizer: Mapping[str, Any] = NO_TOKENIZER) -> None:
    """Write the model as a GGUF file. Logits come out with a deviation of about 1."""
    random = np.random.default_rng(tiny.seed)
    writer = gguf.GGUFWriter(path, tiny.architecture)
    for key, value in {**tokenizer, **_keys(tiny)}.items():
        _add(writer, key, value)
    for name, dims in tiny.matrices().items():
        scale = 1.0 if name == "token_embd" and not tiny.tied else dims[1] ** -0.5
        _add_matrix(writer, f"{name}.weight", tiny.weight_type, dims, scale, random)
    for name, length in tiny.norms().items():
        writer.add_tensor(f"{name}.weight", _floats(1 + 0.2 * random.standard_normal(length)))
    for name, length in tiny.biases().items():
        writer.add_tensor(f"{name}.bias", _floats(0.3 * random.standard_normal(length)))
    if tiny.factors is not None:
        writer.add_tensor("rope_freqs.weight", tiny.factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _keys(tiny: Tiny) -> Mapping[str, Any]:
    keys: dict[str, Any] = {
        "vocab_size": tiny.vocabulary,
        "context_length": CONTEXT,
        "embedding_length": tiny.width,
        "block_count": LAYERS,
        "feed_forward_length": tiny.wide,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": tiny.head_length,
        "attention.value_length": tiny.head_length,
        "attention.layer_norm_rms_epsilon": NORM_EPSILON,
        "rope.dimension_count": tiny.head_length,
        "rope.freq_base": ROPE_BASE,
    }
    if tiny.rope in ("linear", "yarn"):
        keys |= {"rope.scaling.type": tiny.rope, "rope.scaling.factor": SCALING_FACTOR}
    if tiny.rope == "yarn":
        keys |= {"rope.scaling.original_context_length": ORIGINAL_CONTEXT}
    return {f"{tiny.architecture}.{key}": value for key, value in keys.items()}


def _add(writer: Any, key: str, value: int | float | str | list[Any]) -> None:
    kinds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    add = kinds[type(value)]
    add(key, value)


def _add_matrix(
    writer: Any, name: str, kind: str, dims: tuple[int, int], scale: float, random: np.random.Generator
) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    if kind in RANDOM_BLOCKS:
        raw = random_blocks(kind, dims, scale, random)
    else:
        raw = gguf.quants.quantize(_floats(random.standard_normal(dims) * scale), quantisation)
    writer.add_tensor(name, raw, raw_dtype=None if kind in {"F32", "F16"} else quantisation)


def _floats(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, dtype=np.float32)
