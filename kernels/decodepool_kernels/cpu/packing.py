"""Matrices as the products want them: tiles of 16 outputs by blocks of 32 inputs.

Within a tile's block, codes lie in groups of 4 inputs: [group][output][4]. Codes of 4 bits share bytes: groups 0-3 low,
4-7 high nibble. Scales lie [part][output], minima after them. Float weights lie [input][output]. Short tiles are filled
up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from decodepool_sizing.layouts import (
    BLOCK_DOTS,
    BLOCK_INPUTS,
    FLOAT_BYTES,
    FLOAT_KINDS,
    LAYOUT_KINDS,
    TILE_OUTPUTS,
    QuantLayout,
    round_up,
)
from numpy.typing import NDArray

from decodepool_kernels.cpu.buffers import aligned_bytes
from decodepool_kernels.scales import Scales, products_of


@dataclass(frozen=True, eq=False)
class Tiled:
    """What every packed matrix is: outputs in tiles of 16, inputs in blocks of 32."""

    outputs: int
    inputs: int

    @property
    def tiles(self) -> int:
        """Tiles of 16 outputs."""
        return round_up(self.outputs, TILE_OUTPUTS) // TILE_OUTPUTS

    @property
    def blocks(self) -> int:
        """Blocks of 32 inputs."""
        return self.inputs // BLOCK_INPUTS


@dataclass(frozen=True, eq=False)
class QuantMatrix(Tiled):
    """A packed quantised matrix. `zero` is the code that stands for 0."""

    layout: QuantLayout
    zero: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]

    @property
    def kind(self) -> int:
        """The layout's index among the compiled ones."""
        return LAYOUT_KINDS.index(self.layout)

    @property
    def code_bytes(self) -> int:
        """Bytes of one tile's block of codes."""
        return TILE_OUTPUTS * BLOCK_INPUTS * self.layout.code_bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of one tile's block of scales and minima."""
        per_output = BLOCK_INPUTS // self.layout.sub_block * (2 if self.layout.has_minimum else 1)
        return TILE_OUTPUTS * per_output * self.layout.scale_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes allocated."""
        return self.codes.size + self.scales.size

    @property
    def planes(self) -> tuple[NDArray[np.uint8], ...]:
        """The bytes, each plane tile after tile."""
        return self.codes, self.scales

    def emptied(self, outputs: int) -> QuantMatrix:
        """Return a matrix of as many outputs, kept as this one is, whose planes are yet to be filled."""
        return empty_quantised(self.layout, outputs, self.inputs, self.zero)


@dataclass(frozen=True, eq=False)
class FloatMatrix(Tiled):
    """A packed F32, F16 or BF16 matrix."""

    type_name: str
    weights: NDArray[np.uint8]

    @property
    def kind(self) -> int:
        """The type's index among the compiled ones."""
        return FLOAT_KINDS.index(self.type_name)

    @property
    def element_bytes(self) -> int:
        """Bytes of one weight."""
        return FLOAT_BYTES[self.type_name]

    @property
    def size_bytes(self) -> int:
        """Bytes allocated."""
        return self.weights.size

    @property
    def planes(self) -> tuple[NDArray[np.uint8], ...]:
        """The bytes, tile after tile."""
        return (self.weights,)

    def emptied(self, outputs: int) -> FloatMatrix:
        """Return a matrix of as many outputs, kept as this one is, whose plane is yet to be filled."""
        return empty_float(self.type_name, outputs, self.inputs)


PackedMatrix = QuantMatrix | FloatMatrix


def _whole_tiles(rows: NDArray[Any]) -> NDArray[Any]:
    missing = -rows.shape[0] % TILE_OUTPUTS
    return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)]) if missing else rows


def pack_codes(codes: NDArray[np.uint8], layout: QuantLayout, target: NDArray[np.uint8]) -> None:
    """Pack codes `[outputs, inputs]`, whole tiles, into `target`."""
    outputs, inputs = codes.shape
    words = np.ascontiguousarray(codes).view(np.uint32).reshape(-1, TILE_OUTPUTS, inputs // BLOCK_INPUTS, BLOCK_DOTS)
    grouped = words.transpose(0, 2, 3, 1)
    packed = target.view(np.uint32).reshape(outputs // TILE_OUTPUTS, inputs // BLOCK_INPUTS, -1, TILE_OUTPUTS)
    half = BLOCK_DOTS // 2
    if layout.code_bits == 8:
        packed[...] = grouped
    else:
        np.bitwise_or(grouped[:, :, :half], grouped[:, :, half:] << np.uint32(4), out=packed)


def pack_scales(
    scales: NDArray[Any], minima: NDArray[Any] | None, layout: QuantLayout, target: NDArray[np.uint8]
) -> None:
    """Pack scales (and minima) `[outputs, inputs / sub_block]`, whole tiles, into `target`."""
    parts = BLOCK_INPUTS // layout.sub_block
    kind = np.float16 if layout.scale_bytes == 2 else np.float32
    planes = [scales] if minima is None else [scales, minima]
    blocks = scales.shape[1] // parts
    out = target.view(kind).reshape(-1, blocks, len(planes), parts, TILE_OUTPUTS)
    for index, plane in enumerate(planes):
        out[:, :, index] = plane.reshape(-1, TILE_OUTPUTS, blocks, parts).transpose(0, 2, 3, 1)


def empty_quantised(layout: QuantLayout, outputs: int, inputs: int, zero: int) -> QuantMatrix:
    """Allocate a matrix."""
    matrix = QuantMatrix(outputs, inputs, layout, zero, np.empty(0, np.uint8), np.empty(0, np.uint8))
    tile_blocks = matrix.tiles * matrix.blocks
    codes, scales = (aligned_bytes(tile_blocks * size) for size in (matrix.code_bytes, matrix.scale_bytes))
    return replace(matrix, codes=codes, scales=scales)


def empty_float(type_name: str, outputs: int, inputs: int) -> FloatMatrix:
    """Allocate a matrix."""
    size = round_up(outputs, TILE_OUTPUTS) * inputs * FLOAT_BYTES[type_name]
    return FloatMatrix(outputs, inputs, type_name, aligned_bytes(size))


def pack_quantised(
    layout: QuantLayout, codes: NDArray[np.uint8], scales: Scales, minima: Scales | None, zero: int
) -> QuantMatrix:
    """Pack a matrix given as codes `[outputs, inputs]` and scales (and minima) `[outputs, inputs / sub_block]`."""
    outputs, inputs = codes.shape
    matrix = empty_quantised(layout, outputs, inputs, zero)
    pack_codes(_whole_tiles(codes), layout, matrix.codes)
    wide_minima = None if minima is None else _whole_tiles(products_of(minima))
    pack_scales(_whole_tiles(products_of(scales)), wide_minima, layout, matrix.scales)
    return matrix


def pack_float(type_name: str, values: NDArray[Any]) -> FloatMatrix:
    """Pack weights `[outputs, inputs]`, each as the bits of its own type (u16 for F16 and BF16, f32)."""
    outputs, inputs = values.shape
    matrix = empty_float(type_name, outputs, inputs)
    tiles = _whole_tiles(values).reshape(-1, TILE_OUTPUTS, inputs)
    matrix.weights.view(values.dtype).reshape(-1, inputs, TILE_OUTPUTS)[...] = tiles.transpose(0, 2, 1)
    return matrix
