"""Pages of keys and values: 64 tokens of one layer. A head's keys lie dimension by dimension ([D][64]), its values
token by token ([64][D]), so that both products of attention run along lanes.

Kinds: f32; f16 (saturating at +-65504); q8_0, 32 dimensions of a token sharing an f16 scale amax / 127, at most 515.5,
the value being f16(scale * q).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decodepool_kernels.cpu.jit import compiled
from decodepool_kernels.cpu.scalar import load_f16, load_i8, round_f16, store_f16, store_i8, widen_f16
from decodepool_kernels.cpu.views import float32_at

PAGE_TOKENS = 64
KV_KINDS = ("f32", "f16", "q8_0")
KV_F32, KV_F16, KV_Q8_0 = range(3)
QUANT_DIMS = 32
F16_LARGEST = np.float32(65504.0)
LARGEST_SCALE = np.float32(515.5)
"""127 times it is still an f16; 65504 / 127 rounds to 516, of which that is infinite."""


def head_bytes(kind: str, head_width: int) -> int:
    """Return the bytes of one head's keys (or values) in one page."""
    elements = head_width * PAGE_TOKENS
    return {"f32": 4 * elements, "f16": 2 * elements, "q8_0": elements + elements // QUANT_DIMS * 2}[kind]


@compiled
def saturate(value: Any) -> Any:
    """Return a value held within f16's range."""
    return min(max(value, -F16_LARGEST), F16_LARGEST)


@compiled
def element_index(is_key: bool, token: int, dim: int, width: int) -> int:
    """Return where an element lies within its head's page."""
    return dim * PAGE_TOKENS + token if is_key else token * width + dim


@compiled
def append_head(kind: int, values: Any, where: Any, is_key: bool, token: int, width: int) -> None:
    """Write one token's head of `width` values into its page's head at address `where`."""
    if kind == KV_F32:
        page = float32_at(where, width * PAGE_TOKENS)
        for dim in range(width):
            page[element_index(is_key, token, dim, width)] = values[dim]
    elif kind == KV_F16:
        for dim in range(width):
            store_f16(saturate(values[dim]), where + 2 * element_index(is_key, token, dim, width))
    else:
        for first in range(0, width, QUANT_DIMS):
            append_quantised(values, where, is_key, token, width, first)


@compiled
def append_quantised(values: Any, where: int, is_key: bool, token: int, width: int, first: int) -> None:
    """Quantise dimensions [first, first + 32) of one token. A NaN makes the scale NaN, so that it is seen."""
    largest = fault = np.float32(0.0)
    for dim in range(first, first + QUANT_DIMS):
        magnitude = abs(saturate(values[dim]))
        largest, fault = max(largest, magnitude), fault + magnitude * np.float32(0.0)
    scale = round_f16(min((largest + fault) / np.float32(127.0), LARGEST_SCALE))
    scales = where + width * PAGE_TOKENS
    store_f16(scale, scales + 2 * ((first // QUANT_DIMS) * PAGE_TOKENS + token))
    for dim in range(first, first + QUANT_DIMS):
        ratio = saturate(values[dim]) / scale if scale > 0 else np.float32(0.0)
        code = np.int32(min(max(np.rint(ratio), np.float32(-127.0)), np.float32(127.0)))
        store_i8(code, where + element_index(is_key, token, dim, width))


@compiled
def append(
    kind: int, x: int, stride: int, heads: int, width: int, base: int, page_bytes: int, is_key: int,
    tables: Any, table_width: int, row_tables: Any, positions: Any, first: int, last: int,
) -> None:  # fmt: skip
    """Write items (row, head) into their pages of one layer at address `base`."""
    for item in range(first, last):
        row, head = item // heads, item % heads
        position = positions[row]
        page = np.int64(tables[row_tables[row] * table_width + position // PAGE_TOKENS])
        where = base + page * page_bytes + head * (page_bytes // heads)
        append_head(
            kind,
            float32_at(x + row * stride + head * width * 4, width),
            where,
            is_key != 0,
            position % PAGE_TOKENS,
            width,
        )


@compiled
def widen_head(kind: int, where: Any, is_key: bool, width: int, target: int) -> Any:
    """Return the address of one head's page as f32: `target` filled from narrower kinds, the page itself where it is
    f32 already.
    """
    elements = width * PAGE_TOKENS
    if kind == KV_F32:
        return where
    if kind == KV_F16:
        for i in range(0, elements, 16):
            widen_f16(where + 2 * i, target + 4 * i)
        return target
    out = float32_at(target, elements)
    scales = where + elements
    for index in range(elements):
        dim, token = (index // PAGE_TOKENS, index % PAGE_TOKENS) if is_key else (index % width, index // width)
        scale = load_f16(scales + 2 * ((dim // QUANT_DIMS) * PAGE_TOKENS + token))
        out[index] = round_f16(scale * np.float32(load_i8(where + index)))
    return target
