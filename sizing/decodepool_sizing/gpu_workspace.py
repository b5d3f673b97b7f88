"""What a step needs on a GPU beside weights and sessions, buffer by buffer, as the CUDA engine takes them.

The largest are the activations of a step's rows, kept in f32 and, for the products, as two f16 a value; sums of slices
that products leave apart; and the states of attention's chunks. A test holds the engine's own sum to this.
"""

from __future__ import annotations

from decodepool_sizing.devices import GpuCores
from decodepool_sizing.gpu_arena import arena_bytes
from decodepool_sizing.gpu_sums import sums_bytes
from decodepool_sizing.kv import pages
from decodepool_sizing.matrix_types import UNIFORM, StepTypes
from decodepool_sizing.shape import ModelShape

CHUNK_STATES = 1024
"""States of attention's chunks that there is room for, a query head."""
WIDE_HEADS, TOTAL_THREADS = (64, 128), 256
"""Head widths that attention has a program of many rows for, and that program's threads that hold a total."""
STEP_WORDS, UNIT_WORDS = 16 + 7 * 512, 8
"""int32 that a step brings whatever its rows, and a unit of attention."""
TOKEN_BYTES, SHARES_BYTES = 4, 8 * 32 + 4
"""Of a row's last token; of the 32 shares that find its best one, and their count, where clusters do not. (Of a Hopper
that has no room for a cluster, they come out of its margin.)
"""
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
    row_bytes = TOKEN_BYTES if cores.is_hopper else TOKEN_BYTES + SHARES_BYTES
    fixed = step + states + totals + row_bytes * max_step_rows + FLAG_BYTES * cores.multiprocessors + 4 * width
    arena = arena_bytes(shape, max_step_rows, types, has_wide=has_wide)
    return fixed + arena + sums_bytes(shape, cores, max_step_rows, types)
