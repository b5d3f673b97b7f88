"""How the engines keep each weight type in memory, and so how many bytes a tensor takes once loaded.

The CPU engine keeps a matrix in tiles of 16 outputs by 32 inputs: integer codes (4 or 8 bits) with one scale, and
where the type has one a minimum, per output and sub-block: value = scale * (code - zero) + minimum. Float types keep
their own width. Rows are padded to a whole tile, inputs to a whole block.

A GPU keeps the same, in pairs of tiles, but for k-quants: their scales are a byte each, and for every output and 4
blocks the f16 that they multiply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from decodepool_sizing.devices import DeviceKind

TILE_OUTPUTS = 16
BLOCK_INPUTS = 32
DOT_INPUTS = 4
"""Inputs of one output that lie side by side: what one dot-product instruction takes."""
BLOCK_DOTS = BLOCK_INPUTS // DOT_INPUTS
GROUP_BLOCKS = 4
"""Blocks of a row that lie side by side on a GPU."""
ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class QuantLayout:
    """How codes are kept: bits of a code, inputs that share a scale, whether there is a minimum, bytes of a scale (2:
    f16, 4: f32), whether scales are products of an f16 and a small integer, which a GPU keeps apart.
    """

    code_bits: int
    sub_block: int
    has_minimum: bool
    scale_bytes: int
    is_factored: bool = False


QUANT_LAYOUTS: dict[str, QuantLayout] = {
    "Q4_0": QuantLayout(4, 32, False, 2),
    "Q4_1": QuantLayout(4, 32, True, 2),
    "Q5_0": QuantLayout(8, 32, False, 2),
    "Q5_1": QuantLayout(8, 32, True, 2),
    "Q8_0": QuantLayout(8, 32, False, 2),
    "IQ4_NL": QuantLayout(8, 32, False, 2),
    "MXFP4": QuantLayout(8, 32, False, 4),
    "Q2_K": QuantLayout(4, 16, True, 4, is_factored=True),
    "Q3_K": QuantLayout(4, 16, False, 4, is_factored=True),
    "Q4_K": QuantLayout(4, 32, True, 4, is_factored=True),
    "Q5_K": QuantLayout(8, 32, True, 4, is_factored=True),
    "Q6_K": QuantLayout(8, 16, False, 4, is_factored=True),
}
"""A k-quant's scale is the product of an f16 and a small integer, exact in f32 and not in f16."""

LAYOUT_KINDS: tuple[QuantLayout, ...] = tuple(dict.fromkeys(QUANT_LAYOUTS.values()))
"""The distinct layouts; compiled code names one by its index."""

FLOAT_BYTES: dict[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
FLOAT_KINDS = tuple(FLOAT_BYTES)
"""Float types; compiled code names one by its index."""


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def matrix_bytes(type_name: str, inputs: int, outputs: int) -> int:
    """Return the bytes that the CPU engine allocates for one `outputs x inputs` matrix of a GGUF type; KeyError for a
    type it lacks.
    """
    elements = round_up(inputs, BLOCK_INPUTS) * round_up(outputs, TILE_OUTPUTS)
    if type_name in FLOAT_BYTES:
        return elements * FLOAT_BYTES[type_name]
    layout = QUANT_LAYOUTS[type_name]
    scales = elements // layout.sub_block * layout.scale_bytes * (2 if layout.has_minimum else 1)
    return elements * layout.code_bits // 8 + scales


def gpu_matrix_bytes(type_name: str, inputs: int, outputs: int) -> int:
    """Return the bytes that a GPU worker allocates for one `outputs x inputs` matrix; KeyError as `matrix_bytes`."""
    whole = round_up(outputs, TILE_OUTPUTS if type_name == "F32" else 2 * TILE_OUTPUTS)
    layout = QUANT_LAYOUTS.get(type_name)
    if layout is None or not layout.is_factored:
        return matrix_bytes(type_name, inputs, whole)
    planes = 2 if layout.has_minimum else 1
    head = planes * (GROUP_BLOCKS * BLOCK_INPUTS // layout.sub_block + 2)
    return whole * (inputs * layout.code_bits // 8 + -(-inputs // (GROUP_BLOCKS * BLOCK_INPUTS)) * head)


def vector_bytes(length: int) -> int:
    """Return the bytes of a bias or norm weight: f32, padded to a whole block."""
    return round_up(length, BLOCK_INPUTS) * 4


def repacked_bytes(type_name: str, dims: Sequence[int], size_bytes: int, device: DeviceKind = "cpu") -> int:
    """Return the bytes a tensor takes once loaded. `dims` fastest first; a type the engines do not run yet counts as
    in the file.
    """
    if len(dims) == 1:
        return vector_bytes(dims[0])
    if type_name not in FLOAT_BYTES and type_name not in QUANT_LAYOUTS:
        return round_up(size_bytes, ALIGNMENT_BYTES)
    matrix = matrix_bytes if device == "cpu" else gpu_matrix_bytes
    return matrix(type_name, dims[0], dims[1]) * prod(dims[2:])
