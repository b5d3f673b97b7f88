"""Which types a model's matrices have, and what of that a step's memory on a GPU depends on: matrices of different
types that take the same rows are launched apart, and may want those rows quantised in different ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from decodepool_sizing.layouts import QUANT_LAYOUTS
from decodepool_sizing.shape import OUTPUT, ModelShape
from decodepool_sizing.tensor_table import TensorInfo

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
QUERIES, OUT, GATES, DOWN = slice(0, 3), 3, slice(4, 6), 6
"""Of these, those that take the same rows, and the others."""
MOST_MIXTURES = 16
"""Mixtures of types that are told apart: more would be too many words to keep of a model (facts.py)."""

BlockTypes = tuple[str, ...]
"""The types of a block's matrices, as MATRICES names them."""


@dataclass(frozen=True, slots=True)
class StepTypes:
    """The types that blocks mix, each mixture once; which of them each block has; and the type of the logits' matrix.
    No blocks: all of them have the first.
    """

    mixtures: tuple[BlockTypes, ...]
    output: str
    blocks: tuple[int, ...] = ()

    def of_block(self, index: int) -> BlockTypes:
        """Return the types of a block; of a mixture that was not kept, the last that was."""
        mixture = self.blocks[index] if index < len(self.blocks) else 0
        return self.mixtures[min(mixture, len(self.mixtures) - 1)]


UNIFORM = StepTypes((("Q8_0",) * len(MATRICES),), "Q8_0")
"""What is planned with where types are not known."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """How rows are quantised for a product: the planes of two bytes a value, and which sums stand beside them: 0 none,
    1 of halves of blocks in f32, 2 of the same in two f16.
    """

    planes: int
    sums: int

    def serves(self, wanted: Rounding) -> bool:
        """Return whether a product that wants the other may take this one."""
        return self.planes == wanted.planes and wanted.sums in {0, self.sums}


def step_types(shape: ModelShape, tensors: Iterable[TensorInfo]) -> StepTypes:
    """Return the types of a model's matrices; UNIFORM of an architecture whose blocks have other matrices."""
    types = {tensor.name.removesuffix(".weight"): tensor.type.name for tensor in tensors}
    names = [[f"blk.{index}.{matrix}" for matrix in MATRICES] for index in range(shape.block_count)]
    if not all(name in types for block in names for name in block):
        return UNIFORM
    found = [tuple(types[name] for name in block) for block in names]
    mixtures = list(dict.fromkeys(found))
    blocks = tuple(min(mixtures.index(each), MOST_MIXTURES - 1) for each in found) if len(mixtures) > 1 else ()
    output = types.get(OUTPUT.removesuffix(".weight"), types["token_embd"])
    return StepTypes(tuple(mixtures[:MOST_MIXTURES]), output, blocks)


def rounding_of(type_name: str) -> Rounding | None:
    """Return how a product of a type takes its rows; None where it takes them as they are."""
    if type_name == "F32":
        return None
    layout = QUANT_LAYOUTS.get(type_name)
    if layout is None or not layout.has_minimum:
        return Rounding(3 if type_name == "BF16" else 2, 0)
    return Rounding(2, 2 if layout.is_factored else 1)


def launches_of(types: Sequence[str]) -> list[list[int]]:
    """Return which matrices of the same rows share a launch, in order: those that are kept alike. Who wants sums comes
    first.
    """

    def order(index: int) -> tuple[bool, str]:
        rounding = rounding_of(types[index])
        return rounding is None or rounding.sums == 0, _kept(types[index])

    return [list(alike) for _, alike in groupby(sorted(range(len(types)), key=order), key=order)]


def share_rounding(types: Sequence[str]) -> bool:
    """Return whether rows that are quantised once serve products of all these types."""
    first, *others = (rounding_of(types[alike[0]]) for alike in launches_of(types))
    return first is not None and all(other is not None and first.serves(other) for other in others)


def _kept(type_name: str) -> str:
    """Return how the engine keeps a type, in words that sort as its own do."""
    layout = QUANT_LAYOUTS.get(type_name)
    if layout is None:
        return f"16 {type_name == 'BF16'}" if type_name in ("BF16", "F16") else type_name
    scale_bytes = 1 if layout.is_factored else layout.scale_bytes
    return f"{layout.code_bits} {layout.sub_block} {layout.has_minimum} {scale_bytes}"
