"""Embedding rows, read back from the tiles in which the matrix is kept: value = fma(code - zero, scale, minimum), or
the float itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from decodepool_sizing.layouts import BLOCK_INPUTS, TILE_OUTPUTS

from decodepool_kernels.cpu.jit import compiled
from decodepool_kernels.cpu.scalar import fma, load_f16, load_u8
from decodepool_kernels.cpu.views import float32_at

GROUP = 4


@compiled
def _code(codes: int, lane: int, k: int, bits: int) -> Any:
    """Return the code of input k of one output lane in one block."""
    group, byte = k // GROUP, k % GROUP
    if bits == 8:
        return load_u8(codes + group * TILE_OUTPUTS * GROUP + lane * GROUP + byte)
    packed = load_u8(codes + (group % 4) * TILE_OUTPUTS * GROUP + lane * GROUP + byte)
    return packed & 15 if group < 4 else packed >> 4


@compiled
def _scale(scales: int, part: int, lane: int, scale_bytes: int) -> Any:
    where = scales + (part * TILE_OUTPUTS + lane) * scale_bytes
    return load_f16(where) if scale_bytes == 2 else float32_at(where, 1)[0]


@compiled
def embed_quantised(
    codes: int, scales: int, zero: int, code_bytes: int, scale_stride: int, bits: int, sub_block: int, has_minimum: int,
    scale_bytes: int, blocks: int, tokens: Any, out: int, stride: int, first: int, last: int,
) -> None:  # fmt: skip
    """Write the embedding of rows, f32."""
    parts = BLOCK_INPUTS // sub_block
    for row in range(first, last):
        tile, lane = tokens[row] // TILE_OUTPUTS, tokens[row] % TILE_OUTPUTS
        target = float32_at(out + row * stride, blocks * BLOCK_INPUTS)
        for block in range(blocks):
            index = tile * blocks + block
            for k in range(BLOCK_INPUTS):
                part = k // sub_block
                scale = _scale(scales + index * scale_stride, part, lane, scale_bytes)
                low = (
                    _scale(scales + index * scale_stride, parts + part, lane, scale_bytes)
                    if has_minimum
                    else np.float32(0.0)
                )
                code = _code(codes + index * code_bytes, lane, k, bits)
                target[block * BLOCK_INPUTS + k] = fma(np.float32(code - zero), scale, low)


@compiled
def _widen(kind: int, where: int) -> Any:
    if kind == 0:
        return float32_at(where, 1)[0]
    if kind == 1:
        return load_f16(where)
    bits = np.uint32(load_u8(where) | load_u8(where + 1) << 8) << np.uint32(16)
    return np.uint32(bits).view(np.float32)


@compiled
def embed_float(
    kind: int,
    weights: int,
    element_bytes: int,
    blocks: int,
    tokens: Any,
    out: int,
    stride: int,
    first: int,
    last: int,
) -> None:
    """Write the embedding of rows from an F32, F16 or BF16 matrix."""
    for row in range(first, last):
        tile, lane = tokens[row] // TILE_OUTPUTS, tokens[row] % TILE_OUTPUTS
        width = blocks * BLOCK_INPUTS
        target = float32_at(out + row * stride, width)
        for k in range(width):
            target[k] = _widen(kind, weights + ((tile * width + k) * TILE_OUTPUTS + lane) * element_bytes)
