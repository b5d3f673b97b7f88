"""What a step needs on a GPU beside weights and sessions, buffer by buffer, as the CUDA engine takes them.

The largest are the activations of a step's rows, kept in f32 and, for the products, as two f16 a value; sums of slices
that products leave apart; and the states of attention's chunks. A test holds the engine's own sum to this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from decodepool_sizing.devices import GpuCores
from decodepool_sizing.expected import DENSE_PARTS, Parts
from decodepool_sizing.gpu_arena import SLICES, arena_bytes, sizes_of
from decodepool_sizing.kv import pages
from decodepool_sizing.matrix_types import GATES, QUERIES, UNIFORM, StepTypes, launches_of, share_rounding
from decodepool_sizing.shape import ModelShape

PREPARED_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Rows for which a step is prepared; a step of fewer runs the next, and the rows it lacks are passed over."""

UNIT_OUTPUTS, UNIT_ROWS = 256, 64
"""What a unit of a wide product has of outputs and rows, at most; one of half the outputs has up to twice the rows, and
no more sums.
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


def gpu_workspace_bytes(
    shape: ModelShape, cores: GpuCores, context_tokens: int, max_step_rows: int, types: StepTypes = UNIFORM
) -> int:
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
    arena = arena_bytes(shape, max_step_rows, types, has_wide=has_wide)
    return fixed + arena + _slices_bytes(shape, cores, max_step_rows, types)


def _slices_bytes(shape: ModelShape, cores: GpuCores, max_step_rows: int, types: StepTypes) -> int:
    """Return the bytes of the largest product's sums that are left apart or handed on, at any width."""
    widths = {min(rows, max_step_rows) for rows in PREPARED_ROWS if min(rows, max_step_rows) >= FEWEST_WIDE_ROWS}
    sizes = [
        _product_bytes(sum(-(-count // UNIT_OUTPUTS) for count in outputs), rows, cores)
        for outputs in _products(shape, types)
        for rows in widths
    ]
    return max(sizes, default=0)


def _products(shape: ModelShape, types: StepTypes) -> Iterator[list[int]]:
    """Yield the outputs of the products that share a launch, and of those that leave slices beside each other."""
    size, has_head_norms = sizes_of(shape), bool(DENSE_PARTS.get(shape.architecture, Parts()).qk_norm)
    for block in types.mixtures:
        attended = (size.queries, size.keys, size.keys)
        yield from _together(attended, block[QUERIES])
        if share_rounding(block[QUERIES]) and not has_head_norms:
            yield list(attended)
        yield from _together((size.feed_forward, size.feed_forward), block[GATES])
    yield [size.embedding]
    yield [shape.vocabulary_size]


def _together(outputs: Sequence[int], types: Sequence[str]) -> Iterator[list[int]]:
    for alike in launches_of(types):
        yield [outputs[index] for index in alike]


def _product_bytes(places: int, rows: int, cores: GpuCores) -> int:
    units = places * -(-rows // UNIT_ROWS)
    apart = 4 * SLICES * rows * UNIT_OUTPUTS * places
    if not cores.is_hopper:
        return apart if 2 * units < cores.multiprocessors else 0
    if SLICES * units < FEWEST_SLICES * cores.multiprocessors:
        return apart
    return 4 * min(SLICES * units, cores.multiprocessors) * UNIT_OUTPUTS * UNIT_ROWS
