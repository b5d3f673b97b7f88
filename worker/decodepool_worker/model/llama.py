"""llama: Llama 1 to 3, Mistral, SmolLM2. Biases where the file has them; frequencies by `rope_freqs.weight`, linear or
yarn.
"""

from __future__ import annotations

from decodepool_kernels.graph import Graph

from decodepool_worker.model.blocks import attention, feed_forward, logits, norm
from decodepool_worker.model.tensors import ModelTensors

INTERLEAVED = True
"""Converters permute the rows of q and k for pairs (2i, 2i + 1)."""


def build(g: Graph, model: ModelTensors) -> None:
    """Record one step."""
    x = g.embed(model.matrix("token_embd"))
    for layer in range(model.shape.block_count):
        x = x + attention(g, model, layer, norm(g, model, x, f"blk.{layer}.attn_norm"))
        x = x + feed_forward(g, model, layer, norm(g, model, x, f"blk.{layer}.ffn_norm"))
    logits(g, model, x)
