"""The pieces architectures share, each named after its formula."""

from __future__ import annotations

from decodepool_kernels.graph import Graph, Tensor

from decodepool_worker.model.tensors import ModelTensors


def linear(g: Graph, model: ModelTensors, x: Tensor, name: str) -> Tensor:
    """W x (+ b)."""
    return g.matmul(x, model.matrix(name), model.bias(name))


def norm(g: Graph, model: ModelTensors, x: Tensor, name: str, heads: int = 1) -> Tensor:
    """RMS norm of x, or of each of its heads."""
    return g.norm(x, model.vector(f"{name}.weight"), model.shape.norm_epsilon, heads)


def attention(g: Graph, model: ModelTensors, layer: int, h: Tensor, *, normed_heads: bool = False) -> Tensor:
    """Wo attend(rope(Wq h), rope(Wk h), Wv h); with `normed_heads`, queries and keys are normed head by head before
    they turn.
    """
    prefix, shape = f"blk.{layer}", model.shape.layers[layer]
    heads, kv_heads = shape.head_count, shape.kv_head_count
    q, k, v = (linear(g, model, h, f"{prefix}.attn_{name}") for name in "qkv")
    if normed_heads:
        q = norm(g, model, q, f"{prefix}.attn_q_norm", heads)
        k = norm(g, model, k, f"{prefix}.attn_k_norm", kv_heads)
    q, k = g.rope(q, heads, model.rotation), g.rope(k, kv_heads, model.rotation)
    mixed = g.attention(q, k, v, layer=layer, heads=heads, kv_heads=kv_heads, scale=model.shape.attention_scale)
    return linear(g, model, mixed, f"{prefix}.attn_output")


def feed_forward(g: Graph, model: ModelTensors, layer: int, h: Tensor) -> Tensor:
    """Wd (silu(Wg h) * Wu h)."""
    gate, up = (linear(g, model, h, f"blk.{layer}.ffn_{name}") for name in ("gate", "up"))
    return linear(g, model, g.swiglu(gate, up), f"blk.{layer}.ffn_down")


def logits(g: Graph, model: ModelTensors, x: Tensor) -> None:
    """Wout norm(x); Wout is the embedding where the file has no other."""
    matrix = model.matrix("token_embd" if model.shape.tied_embeddings else "output")
    g.logits(x, model.vector("output_norm.weight"), model.shape.norm_epsilon, matrix)
