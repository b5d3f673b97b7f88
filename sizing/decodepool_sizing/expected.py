"""The tensors that the engine's architectures must have, and their dims by the model's own sizes.

A file is held to this before a byte of weights is read: a matrix of another shape than the model's sizes would send
an engine past its buffers, and a tensor the graph has no use for means that the file computes something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import Header
from decodepool_sizing.layers import LayerShape
from decodepool_sizing.shape import ModelShape


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor of a model: `dims` fastest first. One that is not `required` may be missing, but not of other dims."""

    name: str
    dims: tuple[int, ...]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Parts:
    """What a dense architecture has beside the matrices that all of them have: None for never, else whether it must
    be there.
    """

    qkv_bias: bool | None = None
    other_bias: bool | None = None
    qk_norm: bool | None = None
    rope_freqs: bool | None = None


DENSE_PARTS: dict[str, Parts] = {
    "llama": Parts(qkv_bias=False, other_bias=False, rope_freqs=False),
    "qwen2": Parts(qkv_bias=True),
    "qwen3": Parts(qk_norm=True),
}
"""The architectures that the engine runs. Llama-family converters write biases, and llama 3's frequency factors,
where a model has them.
"""


def has_head_norms(shape: ModelShape) -> bool:
    """Whether queries and keys of each head are normed."""
    return bool(DENSE_PARTS.get(shape.architecture, Parts()).qk_norm)


def expected_tensors(shape: ModelShape) -> tuple[ExpectedTensor, ...]:
    """Return every tensor that a model of this shape may have; KeyError for an architecture that the engine does not
    run.
    """
    parts = DENSE_PARTS[shape.architecture]
    trunk = [tensor for i, layer in enumerate(shape.layers) for tensor in _block(shape, layer, parts, f"blk.{i}.")]
    return (*_ends(shape, parts), *trunk)


def check_tensors(shape: ModelShape, header: Header) -> None:
    """Hold a header to `expected_tensors`. BadModelFile names the tensor, what was expected and what was found."""
    expected = {tensor.name: tensor for tensor in expected_tensors(shape)}
    for tensor in expected.values():
        found = header.by_name.get(tensor.name)
        if found is None and tensor.required:
            raise BadModelFile(f"tensor {tensor.name}: missing, expected {list(tensor.dims)}")
        if found is not None and found.dims != tensor.dims:
            raise BadModelFile(f"tensor {tensor.name}: expected {list(tensor.dims)}, found {list(found.dims)}")
    skipped = tuple(f"blk.{shape.block_count + i}." for i in range(shape.prediction_blocks))
    for name in header.by_name:
        if name not in expected and not (skipped and name.startswith(skipped)):
            raise BadModelFile(f"tensor {name}: not a part of {shape.architecture} as the engine runs it")


def _ends(shape: ModelShape, parts: Parts) -> Iterator[ExpectedTensor]:
    embedding = shape.embedding_length
    yield ExpectedTensor("token_embd.weight", (embedding, shape.vocabulary_size))
    yield ExpectedTensor("output_norm.weight", (embedding,))
    yield ExpectedTensor("output.weight", (embedding, shape.vocabulary_size), required=False)
    if parts.rope_freqs is not None:
        yield ExpectedTensor("rope_freqs.weight", (shape.rope.dimension_count // 2,), parts.rope_freqs)


def _block(shape: ModelShape, layer: LayerShape, parts: Parts, prefix: str) -> Iterator[ExpectedTensor]:
    embedding, wide = shape.embedding_length, layer.feed_forward_length
    queries, keys = layer.head_count * layer.key_length, layer.kv_head_count * layer.key_length
    values, mixed = layer.kv_head_count * layer.value_length, layer.head_count * layer.value_length
    for name, inputs, outputs, bias in (
        ("attn_q", embedding, queries, parts.qkv_bias),
        ("attn_k", embedding, keys, parts.qkv_bias),
        ("attn_v", embedding, values, parts.qkv_bias),
        ("attn_output", mixed, embedding, parts.other_bias),
        ("ffn_gate", embedding, wide, parts.other_bias),
        ("ffn_up", embedding, wide, parts.other_bias),
        ("ffn_down", wide, embedding, parts.other_bias),
    ):
        yield ExpectedTensor(f"{prefix}{name}.weight", (inputs, outputs))
        if bias is not None:
            yield ExpectedTensor(f"{prefix}{name}.bias", (outputs,), bias)
    for name in ("attn_norm", "ffn_norm"):
        yield ExpectedTensor(f"{prefix}{name}.weight", (embedding,))
    if parts.qk_norm is not None:
        for name in ("attn_q_norm", "attn_k_norm"):
            yield ExpectedTensor(f"{prefix}{name}.weight", (layer.key_length,), parts.qk_norm)
