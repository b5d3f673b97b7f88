"""Models known by name alone, to be measured without a file: their headers, as files of such weights have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from decodepool_sizing.errors import BadDemand
from decodepool_sizing.header import Header
from decodepool_sizing.metadata import Value
from decodepool_sizing.support import RUN_WEIGHT_TYPES
from decodepool_sizing.tensor_table import TensorInfo
from decodepool_sizing.tensor_types import TensorType

_FILE_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class NamedShape:
    """A dense llama, without biases, whose output matrix is its own."""

    blocks: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    context_tokens: int
    rope_base: float


SHAPES: dict[str, NamedShape] = {
    "llama-3-8b": NamedShape(32, 4096, 14336, 32, 8, 128, 128_256, 131_072, 500_000.0),
}
"""By the names that `bench --shape` takes."""

TypeOf = Callable[[str, int, int], TensorType]
"""A matrix's type, by its role, its block and the number of blocks."""


def _medium(usual: TensorType) -> TypeOf:
    """Return the recipe of llama.cpp's *_K_M: Q6_K for the output, and for half of the blocks' values and down."""

    def type_of(role: str, block: int, blocks: int) -> TensorType:
        is_edge = block < blocks // 8 or block >= 7 * blocks // 8
        is_more = is_edge or (block - blocks // 8) % 3 == 2
        is_fine = role == "output" or (role in {"attn_v", "ffn_down"} and is_more)
        return TensorType.Q6_K if is_fine else usual

    return type_of


RECIPES: dict[str, TypeOf] = {"Q4_K_M": _medium(TensorType.Q4_K), "Q5_K_M": _medium(TensorType.Q5_K)}
"""Names of files that mix types. Any other name is one type for every matrix."""


def named_header(name: str, weights: str) -> Header:
    """Return the header of a shape with weights such as Q8_0 or Q4_K_M. BadDemand for a name that is not known."""
    if name not in SHAPES:
        raise BadDemand(f"no shape is called {name!r}; there are {', '.join(SHAPES)}")
    shape, type_of = SHAPES[name], _recipe(weights)
    tensors, offset = [], 0
    for tensor, dims, kind in _tensors(shape, type_of):
        size = dims[0] // kind.block_elements * kind.block_bytes * (dims[1] if len(dims) > 1 else 1)
        tensors.append(TensorInfo(tensor, dims, kind, offset, size))
        offset += size
    return Header(3, 32, _metadata(shape), tuple(tensors), 0, _FILE_BYTES)


def _recipe(weights: str) -> TypeOf:
    if weights in RECIPES:
        return RECIPES[weights]
    kinds = {kind.name: kind for kind in sorted(RUN_WEIGHT_TYPES)}
    if weights not in kinds:
        raise BadDemand(f"no weights are called {weights!r}; there are {', '.join([*kinds, *RECIPES])}")
    return lambda role, block, blocks: kinds[weights]  # noqa: ARG005 - every matrix alike


def _metadata(shape: NamedShape) -> dict[str, Value]:
    keys: dict[str, Value] = {
        "block_count": shape.blocks,
        "context_length": shape.context_tokens,
        "embedding_length": shape.width,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": shape.rope_base,
        "rope.dimension_count": shape.head_width,
    }
    return {"general.architecture": "llama", **{f"llama.{key}": value for key, value in keys.items()}}


def _tensors(shape: NamedShape, type_of: TypeOf) -> Iterator[tuple[str, tuple[int, ...], TensorType]]:
    """Yield name, dims (fastest first) and type of every tensor."""
    width, queries, keys = shape.width, shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    yield "token_embd.weight", (width, shape.vocabulary), type_of("token_embd", 0, shape.blocks)
    yield "output_norm.weight", (width,), TensorType.F32
    yield "output.weight", (width, shape.vocabulary), type_of("output", 0, shape.blocks)
    matrices = {
        "attn_q": (width, queries), "attn_k": (width, keys), "attn_v": (width, keys), "attn_output": (queries, width),
        "ffn_gate": (width, shape.feed_forward), "ffn_up": (width, shape.feed_forward),
        "ffn_down": (shape.feed_forward, width),
    }  # fmt: skip
    for block in range(shape.blocks):
        for norm in ("attn_norm", "ffn_norm"):
            yield f"blk.{block}.{norm}.weight", (width,), TensorType.F32
        for role, dims in matrices.items():
            yield f"blk.{block}.{role}.weight", dims, type_of(role, block, shape.blocks)
