"""llama, qwen2 and qwen3 in binary64, from the formulae: no pages, no blocks, no steps, no code of the project's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BETA_FAST, BETA_SLOW = 32.0, 1.0
"""yarn's turns within the original context: pairs with more are left alone, pairs with fewer are interpolated."""


@dataclass(frozen=True)
class Sizes:
    """What the formulae need beside tensors. `neighbours`: a pair of rope is (2i, 2i + 1), else (i, i + d/2)."""

    layers: int
    heads: int
    kv_heads: int
    head_length: int
    epsilon: float
    base: float
    scaling: str
    factor: float
    original_context: int
    neighbours: bool


class Reference:
    """A model read with `gguf`'s own reader and dequantiser."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.sizes = _sizes({name: field.contents() for name, field in reader.fields.items()})
        self._tensors: dict[str, NDArray[Any]] = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors
        }

    def logits(self, tokens: list[int]) -> Array:
        """Return the logits after each of the tokens, `[tokens, vocabulary]`."""
        x: Array = self._tensors["token_embd.weight"][tokens].astype(np.float64)
        for layer in range(self.sizes.layers):
            prefix = f"blk.{layer}."
            x = x + self._attention(prefix, self._norm(x, f"{prefix}attn_norm"))
            x = x + self._feed_forward(prefix, self._norm(x, f"{prefix}ffn_norm"))
        ends = "output" if "output.weight" in self._tensors else "token_embd"
        return self._linear(self._norm(x, "output_norm"), ends)

    def _linear(self, x: Array, name: str) -> Array:
        """W x + b."""
        y: Array = x @ self._tensors[f"{name}.weight"].astype(np.float64).T
        return y + self._tensors.get(f"{name}.bias", 0.0)

    def _norm(self, x: Array, name: str) -> Array:
        """x / rms(x) * w, over the last axis."""
        rms = np.sqrt((x * x).mean(-1, keepdims=True) + self.sizes.epsilon)
        y: Array = x / rms * self._tensors[f"{name}.weight"]
        return y

    def _attention(self, prefix: str, h: Array) -> Array:
        """softmax(q K' / sqrt(d)) V over the past and the present, each key-value head for its group of queries."""
        length = self.sizes.head_length
        q, k, v = (self._linear(h, f"{prefix}attn_{name}").reshape(len(h), -1, length) for name in "qkv")
        if f"{prefix}attn_q_norm.weight" in self._tensors:
            q, k = self._norm(q, f"{prefix}attn_q_norm"), self._norm(k, f"{prefix}attn_k_norm")
        q, k = self._rope(q), self._rope(k)
        k, v = (np.repeat(part, self.sizes.heads // self.sizes.kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(length)
        scores[:, ~np.tri(len(h), dtype=bool)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self._linear(np.einsum("hij,jhd->ihd", weights, v).reshape(len(h), -1), f"{prefix}attn_output")

    def _feed_forward(self, prefix: str, h: Array) -> Array:
        """W_down (silu(W_gate h) * W_up h)."""
        gate, up = self._linear(h, f"{prefix}ffn_gate"), self._linear(h, f"{prefix}ffn_up")
        return self._linear(gate / (1 + np.exp(-gate)) * up, f"{prefix}ffn_down")

    def _rope(self, x: Array) -> Array:
        """Turn the pairs of each head by position times frequency."""
        frequencies, magnitude = self._frequencies()
        angles = np.arange(len(x))[:, None, None] * frequencies
        cos, sin = magnitude * np.cos(angles), magnitude * np.sin(angles)
        half = self.sizes.head_length // 2
        first, second = (x[..., 0::2], x[..., 1::2]) if self.sizes.neighbours else (x[..., :half], x[..., half:])
        turned = [first * cos - second * sin, first * sin + second * cos]
        return np.stack(turned, axis=-1).reshape(x.shape) if self.sizes.neighbours else np.concatenate(turned, axis=-1)

    def _frequencies(self) -> tuple[Array, float]:
        sizes, d = self.sizes, self.sizes.head_length
        pair = np.arange(d // 2)
        plain: Array = sizes.base ** (-2.0 * pair / d) / self._tensors.get("rope_freqs.weight", 1.0)
        if sizes.scaling == "linear":
            return plain / sizes.factor, 1.0
        if sizes.scaling != "yarn":
            return plain, 1.0
        turns = [sizes.original_context / (beta * 2 * math.pi) for beta in (BETA_FAST, BETA_SLOW)]
        edges = [d * math.log(turn) / (2 * math.log(sizes.base)) for turn in turns]
        low, high = max(math.floor(edges[0]), 0), min(math.ceil(edges[1]), d - 1)
        kept = 1 - np.clip((pair - low) / max(high - low, 0.001), 0, 1)
        return plain / sizes.factor * (1 - kept) + plain * kept, 1 + 0.1 * math.log(sizes.factor)


def _sizes(fields: dict[str, Any]) -> Sizes:
    architecture = fields["general.architecture"]
    keys = {name.removeprefix(f"{architecture}."): value for name, value in fields.items()}
    heads, width = keys["attention.head_count"], keys["embedding_length"]
    return Sizes(
        layers=keys["block_count"],
        heads=heads,
        kv_heads=keys["attention.head_count_kv"],
        head_length=keys.get("attention.key_length", width // heads),
        epsilon=keys["attention.layer_norm_rms_epsilon"],
        base=keys["rope.freq_base"],
        scaling=keys.get("rope.scaling.type", "none"),
        factor=keys.get("rope.scaling.factor", 1.0),
        original_context=keys.get("rope.scaling.original_context_length", 0),
        neighbours=architecture == "llama",
    )
