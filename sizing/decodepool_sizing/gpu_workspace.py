"""What a step needs on a GPU beside weights and sessions, buffer by buffer, as the CUDA engine takes them.

The largest are the activations of a step's rows, kept in f32 and, for the products, as two f16 a value; sums of slices
that products leave apart; and the states of attention's chunks. A test holds the engine's own sum to this. Weights in
BF16 have activations of three planes, some 8 % of the whole more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from decodepool_sizing.arena import Buffer, Uses, place
from decodepool_sizing.devices import GpuCores
from decodepool_sizing.expected import DENSE_PARTS, Parts
from decodepool_sizing.kv import pages
from decodepool_sizing.layouts import BLOCK_INPUTS, GROUP_BLOCKS, round_up
from decodepool_sizing.shape import ModelShape
from decodepool_sizing.workspace import feed_forward_elements

PREPARED_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Rows for which a step is prepared; a step of fewer runs the next, and the rows it lacks are passed over."""

SLICES, UNIT_OUTPUTS, UNIT_ROWS = 8, 256, 64
"""Slices of a product's sums, and what a unit of a wide product has of outputs and rows, at most; one of half the
outputs has up to twice the rows, and no more sums.
"""
FEWEST_WIDE_ROWS, FEWEST_SLICES = 24, 5
"""Rows from which on products are wide; slices of a thread block below which each slice is left apart."""
CHUNK_STATES = 1024
"""States of attention's chunks that there is room for, a query head."""
WIDE_HEADS, TOTAL_THREADS = (64, 128), 256
"""Head widths that attention has a program of many rows for, and that program's threads that hold a total."""
STEP_WORDS, UNIT_WORDS = 16 + 7 * 512, 8
"""int32 that a step brings whatever its rows, and a unit of attention."""
ROW_BYTES = 8 * 32 + 4 + 4
"""Of the 32 shares that find a row's best token and their count, and of its last token."""
FLAG_BYTES = 4 * 16
"""Of the warps of a thread block that hands sums on."""


def gpu_workspace_bytes(shape: ModelShape, cores: GpuCores, context_tokens: int, max_step_rows: int) -> int:
    """Return the bytes that one step of `max_step_rows` rows needs at once, of sessions of `context_tokens` tokens."""
    heads = max(layer.head_count for layer in shape.layers)
    width = max(max(layer.key_length, layer.value_length) for layer in shape.layers)
    has_wide = cores.is_hopper and width in WIDE_HEADS
    wide = cores.multiprocessors if has_wide else 0
    units = max_step_rows + CHUNK_STATES + wide
    step = 4 * (STEP_WORDS + UNIT_WORDS * units + max_step_rows * pages(context_tokens))
    states = CHUNK_STATES * heads * (4 * width + 8)
    totals = wide * TOTAL_THREADS * (2 * width + 16) + wide * TOTAL_THREADS // 8
    fixed = step + states + totals + ROW_BYTES * max_step_rows + FLAG_BYTES * cores.multiprocessors + 4 * width
    return fixed + _arena_bytes(shape, max_step_rows, has_wide=has_wide) + _slices_bytes(shape, cores, max_step_rows)


def _slices_bytes(shape: ModelShape, cores: GpuCores, max_step_rows: int) -> int:
    """Return the bytes of the largest product's sums that are left apart or handed on, at any width."""
    widths = {min(rows, max_step_rows) for rows in PREPARED_ROWS if min(rows, max_step_rows) >= FEWEST_WIDE_ROWS}
    sizes = [
        _product_bytes(sum(-(-count // UNIT_OUTPUTS) for count in outputs), rows, cores)
        for outputs in _products(shape)
        for rows in widths
    ]
    return max(sizes, default=0)


def _products(shape: ModelShape) -> Iterator[tuple[int, ...]]:
    """Yield the outputs of the products that share a launch."""
    size = _sizes(shape)
    yield size.queries, size.keys, size.keys
    yield (size.embedding,)
    yield size.feed_forward, size.feed_forward
    yield (shape.vocabulary_size,)


def _product_bytes(places: int, rows: int, cores: GpuCores) -> int:
    units = places * -(-rows // UNIT_ROWS)
    apart = 4 * SLICES * rows * UNIT_OUTPUTS * places
    if not cores.is_hopper:
        return apart if 2 * units < cores.multiprocessors else 0
    if SLICES * units < FEWEST_SLICES * cores.multiprocessors:
        return apart
    return 4 * min(SLICES * units, cores.multiprocessors) * UNIT_OUTPUTS * UNIT_ROWS


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Elements of a row, of the widest layer."""

    embedding: int
    queries: int
    keys: int
    feed_forward: int


def _sizes(shape: ModelShape) -> _Sizes:
    widest = [(layer, max(layer.key_length, layer.value_length)) for layer in shape.layers]
    queries = max(layer.head_count * width for layer, width in widest)
    keys = max(layer.kv_head_count * width for layer, width in widest)
    return _Sizes(shape.embedding_length, queries, keys, feed_forward_elements(shape))


@lru_cache(maxsize=256)
def _arena_bytes(shape: ModelShape, rows: int, *, has_wide: bool) -> int:
    """Return the bytes of intermediate results, placed as the engine places them."""
    return place(_uses(shape, rows, has_wide=has_wide)).size_bytes


def _uses(shape: ModelShape, rows: int, *, has_wide: bool) -> Uses:
    """Return what each launch of a step reads and writes."""
    size = _sizes(shape)
    columns = round_up(rows, 2 * BLOCK_INPUTS)

    def floats(elements: int) -> Buffer:
        return Buffer(4 * round_up(elements, BLOCK_INPUTS) * rows)

    def planes(elements: int) -> Buffer:
        blocks, groups = -(-elements // BLOCK_INPUTS), -(-elements // (GROUP_BLOCKS * BLOCK_INPUTS))
        return Buffer(columns * (blocks * 4 * BLOCK_INPUTS + groups * 8 * GROUP_BLOCKS + 4 * SLICES))

    x, table = floats(size.embedding), Buffer(4 * shape.key_length * rows)
    uses: list[tuple[tuple[Buffer, ...], tuple[Buffer, ...]]] = [((), (x,))]
    normed: tuple[Buffer, ...] = (x,)
    for index in range(shape.block_count):
        sums, h = (floats(size.embedding),) if index else (), planes(size.embedding)
        x = sums[0] if sums else x
        q, k, v = floats(size.queries), floats(size.keys), floats(size.keys)
        uses += [(normed, (*sums, h)), ((h,), (q, k, v))]
        if DENSE_PARTS.get(shape.architecture, Parts()).qk_norm:
            raw, (q, k) = (q, k), (floats(size.queries), floats(size.keys))
            uses += [((raw[0],), (q,)), ((raw[1],), (k,))]
        if index == 0:
            uses += [((), (table,))]
        mixed, mixed_planes, out = floats(size.queries), planes(size.queries), floats(size.embedding)
        attend = [((q,), (mixed,))] * (1 + has_wide)
        uses += [((q, k, v, table), (q,)), *attend, ((mixed,), (mixed_planes,)), ((mixed_planes,), (out,))]
        total, h = floats(size.embedding), planes(size.embedding)
        gate, up, gated = floats(size.feed_forward), floats(size.feed_forward), planes(size.feed_forward)
        down = floats(size.embedding)
        uses += [((x, out), (total, h)), ((h,), (gate, up)), ((gate, up), (gated,)), ((gated,), (down,))]
        x, normed = total, (total, down)
    h = planes(size.embedding)
    return [*uses, (normed, (floats(size.embedding), h)), ((h,), ())]
