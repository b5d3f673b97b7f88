"""qwen3: queries and keys are normed head by head before they turn; pairs (i, i + n/2)."""

from __future__ import annotations

from decodepool_kernels.graph import Graph

from decodepool_worker.model.blocks import attention, feed_forward, logits, norm
from decodepool_worker.model.tensors import ModelTensors

INTERLEAVED = False


def build(g: Graph, model: ModelTensors) -> None:
    """Record one step."""
    x = g.embed(model.matrix("token_embd"))
    for layer in range(model.shape.block_count):
        x = x + attention(g, model, layer, norm(g, model, x, f"blk.{layer}.attn_norm"), normed_heads=True)
        x = x + feed_forward(g, model, layer, norm(g, model, x, f"blk.{layer}.ffn_norm"))
    logits(g, model, x)
