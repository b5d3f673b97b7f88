"""Attention over pages, split at absolute positions: block = page = 64 tokens, 8 blocks fold into a group, groups into the row, ascending.

For one query head and block: s = scale * (chain of fma over dimensions, ascending); m = max s; p = e^(s - m); l = sum p, lane i adding tokens
i, i + 16, i + 32, i + 48 in that order, lanes by the one tree; O_d = chain of fma(p_t, v_td) over tokens, ascending.
Folding (M, L, O) with (m, l, o): M' = max(M, m); a = e^(M - M'); b = e^(m - M'); L' = fma(L, a, l b); O' = fma(O, a, o b). The row's result is O / L.
All of it is a function of the row's own position and pages: neither the step's other rows nor the work split enter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from .kv import PAGE_TOKENS, widen_head
from .memory import float32_at
from .scalar import exp, fma
from .team import share
from .vector import ADDRESS, F32, I32, I64, LANES, Emit, constant, vector

GROUP_BLOCKS = 8
UNIT_ROWS = 16
"""Rows of one session that share a widened block: work split, no arithmetic."""
TOKEN_VECTORS = PAGE_TOKENS // LANES


@intrinsic  # type: ignore[untyped-decorator]
def block_scores(typing_context: Any, query: Any, keys: Any, width: Any, scale: Any, scores: Any) -> Any:
    """Write the 64 scores of one query of `width` floats against keys [width][64]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, b = Emit(builder), builder
        query_at, keys_at, width_value, scale_value, scores_at = arguments
        sums = [cgutils.alloca_once_value(b, constant(0.0)) for _ in range(TOKEN_VECTORS)]
        with cgutils.for_range(b, width_value) as loop:
            q = emit.splat(emit.load(b.add(query_at, b.mul(loop.index, I64(4))), F32))
            row = b.add(keys_at, b.mul(loop.index, I64(4 * PAGE_TOKENS)))
            for index, total in enumerate(sums):
                b.store(emit.fma(q, emit.load(row, vector(F32), 64 * index), b.load(total)), total)
        for index, total in enumerate(sums):
            emit.store(b.fmul(b.load(total), emit.splat(scale_value)), scores_at, 64 * index)
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, types.int64, types.float32, ADDRESS), generate


@intrinsic  # type: ignore[untyped-decorator]
def block_softmax(typing_context: Any, scores: Any, visible: Any, state: Any) -> Any:
    """Turn 64 scores into p in place, tokens from `visible` on being 0; write m and l to state[0:2]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, b = Emit(builder), builder
        scores_at, visible_value, state_at = arguments
        limit = emit.splat(b.trunc(visible_value, I32))
        seen, lanes = [], []
        for index in range(TOKEN_VECTORS):
            tokens = vector(I32)([LANES * index + lane for lane in range(LANES)])
            seen.append(b.icmp_signed("<", tokens, limit))
            lanes.append(b.select(seen[-1], emit.load(scores_at, vector(F32), 64 * index), constant(float("-inf"))))
        m = emit.max_lanes(emit.maximum(emit.maximum(lanes[0], lanes[1]), emit.maximum(lanes[2], lanes[3])))
        total = None
        for index, (is_seen, s) in enumerate(zip(seen, lanes, strict=True)):
            p = b.select(is_seen, emit.exp(b.fsub(s, emit.splat(m))), constant(0.0))
            emit.store(p, scores_at, 64 * index)
            total = p if total is None else b.fadd(total, p)
        emit.store(m, state_at)
        emit.store(emit.sum_lanes(total), state_at, 4)
        return context.get_dummy_value()

    return types.void(ADDRESS, types.int64, ADDRESS), generate


def _weigher(vectors: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def weigh(typing_context: Any, weights: Any, values: Any, stride: Any, visible: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emit, b = Emit(builder), builder
            weights_at, values_at, stride_value, visible_value, out_at = arguments
            totals = [cgutils.alloca_once_value(b, constant(0.0)) for _ in range(vectors)]
            with cgutils.for_range(b, visible_value) as loop:
                p = emit.splat(emit.load(b.add(weights_at, b.mul(loop.index, I64(4))), F32))
                row = b.add(values_at, b.mul(loop.index, stride_value))
                for index, total in enumerate(totals):
                    b.store(emit.fma(p, emit.load(row, vector(F32), 64 * index), b.load(total)), total)
            for index, total in enumerate(totals):
                emit.store(b.load(total), out_at, 64 * index)
            return context.get_dummy_value()

        return types.void(ADDRESS, ADDRESS, types.int64, types.int64, ADDRESS), generate

    return weigh


weigh_one, weigh_four = _weigher(1), _weigher(4)
"""Write 16 (64) lanes of sum_t p_t v_t over `visible` tokens, values being `stride` bytes apart. Four chains at once hide fma's latency."""


@intrinsic  # type: ignore[untyped-decorator]
def fold_lanes(typing_context: Any, total: Any, part: Any, a: Any, b: Any) -> Any:
    """16 lanes of total = fma(total, a, part * b)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emit(builder)
        total_at, part_at, a_value, b_value = arguments
        scaled = builder.fmul(emit.load(part_at, vector(F32)), emit.splat(b_value))
        emit.store(emit.fma(emit.load(total_at, vector(F32)), emit.splat(a_value), scaled), total_at)
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, types.float32, types.float32), generate


@njit  # type: ignore[untyped-decorator]
def fold(total: int, part: int, width: int) -> None:
    """Fold one state (m, l, o[width], kept as 16 + width floats) into another; an empty one (l = 0) takes the part as it is."""
    sums, parts = float32_at(total, LANES + width), float32_at(part, LANES + width)
    if sums[1] == 0:
        sums[:] = parts
        return
    largest = max(sums[0], parts[0])
    a, b = exp(sums[0] - largest), exp(parts[0] - largest)
    sums[0] = largest
    sums[1] = fma(sums[1], a, parts[1] * b)
    for first in range(0, width, LANES):
        offset = 4 * (LANES + first)
        fold_lanes(total + offset, part + offset, a, b)


@njit  # type: ignore[untyped-decorator]
def block_state(query: int, keys: int, values: int, width: int, scale: Any, visible: int, scores: int, state: int) -> None:
    """Write the state of one query head over one block."""
    block_scores(query, keys, width, scale, scores)
    block_softmax(scores, visible, state)
    first, out = 0, state + 4 * LANES
    while first + 4 * LANES <= width:
        weigh_four(scores, values + 4 * first, 4 * width, visible, out + 4 * first)
        first += 4 * LANES
    while first < width:
        weigh_one(scores, values + 4 * first, 4 * width, visible, out + 4 * first)
        first += LANES


@njit  # type: ignore[untyped-decorator]
def clear_state(state: int, width: int) -> None:
    """Make a state empty."""
    float32_at(state, LANES + width)[:] = 0


@njit  # type: ignore[untyped-decorator]
def unit_scratch_floats(width: int, group_heads: int) -> int:
    """Return the floats one member needs: two widened pages, scores, a block's state, and a group's and a row's state per query."""
    queries = UNIT_ROWS * group_heads
    return 2 * PAGE_TOKENS * width + PAGE_TOKENS + (LANES + width) * (1 + 2 * queries)


@njit  # type: ignore[untyped-decorator]
def attend_unit(
    kind: int, q: int, q_stride: int, kv_head: int, group_heads: int, width: int, scale: Any,
    key_base: int, value_base: int, page_bytes: int, head_bytes: int, table: Any,
    first_row: int, rows: int, first_position: int, out: int, out_stride: int, scratch: int,
) -> None:  # fmt: skip
    """Attend for `rows` consecutive rows of one session and the query heads of one kv head."""
    state_bytes = 4 * (LANES + width)
    page_floats = PAGE_TOKENS * width
    scores = scratch + 8 * page_floats
    block = scores + 4 * PAGE_TOKENS
    groups = block + state_bytes
    totals = groups + state_bytes * rows * group_heads
    for query in range(rows * group_heads):
        clear_state(groups + query * state_bytes, width)
        clear_state(totals + query * state_bytes, width)
    last_block = (first_position + rows - 1) // PAGE_TOKENS
    for index in range(last_block + 1):
        page = np.int64(table[index]) * page_bytes + kv_head * head_bytes
        keys = widen_head(kind, key_base + page, True, width, scratch)
        values = widen_head(kind, value_base + page, False, width, scratch + 4 * page_floats)
        for row in range(rows):
            visible = min(first_position + row + 1 - index * PAGE_TOKENS, PAGE_TOKENS)
            if visible <= 0:
                continue
            ends = index % GROUP_BLOCKS == GROUP_BLOCKS - 1 or index == (first_position + row) // PAGE_TOKENS
            for head in range(group_heads):
                query = row * group_heads + head
                vector_at = q + (first_row + row) * q_stride + (kv_head * group_heads + head) * width * 4
                block_state(vector_at, keys, values, width, scale, visible, scores, block)
                fold(groups + query * state_bytes, block, width)
                if ends:
                    fold(totals + query * state_bytes, groups + query * state_bytes, width)
                    clear_state(groups + query * state_bytes, width)
    for row in range(rows):
        for head in range(group_heads):
            state = float32_at(totals + (row * group_heads + head) * state_bytes, LANES + width)
            target = float32_at(out + (first_row + row) * out_stride + (kv_head * group_heads + head) * width * 4, width)
            for dim in range(width):
                target[dim] = state[LANES + dim] / state[1]


@njit  # type: ignore[untyped-decorator]
def attention(
    kind: int, q: int, stride: int, kv_heads: int, group_heads: int, width: int, scale: Any,
    key_base: int, value_base: int, page_bytes: int, tables: Any, table_width: int, row_tables: Any, positions: Any,
    unit_rows: Any, unit_counts: Any, units: int, out: int, out_stride: int, scratch: int, member: int, members: int,
) -> None:  # fmt: skip
    """Attend for this member's share of (unit, kv head); a unit is up to UNIT_ROWS consecutive rows of one session."""
    first, last = share(units * kv_heads, member, members)
    for item in range(first, last):
        unit, kv_head = item // kv_heads, item % kv_heads
        row = unit_rows[unit]
        start = row_tables[row] * table_width
        attend_unit(
            kind, q, stride, kv_head, group_heads, width, scale, key_base, value_base, page_bytes, page_bytes // kv_heads,
            tables[start : start + table_width], row, unit_counts[unit], positions[row], out, out_stride, scratch,
        )  # fmt: skip
