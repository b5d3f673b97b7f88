"""Attention over pages, split at absolute positions: block = page = 64 tokens, 8 blocks fold into a group, groups into
the row, ascending.

For one query head and block: s = scale * (chain of fma over dimensions, ascending); m = max s; p = e^(s - m); l = sum
p, lane i adding tokens i, i + 16, i + 32, i + 48 in that order, lanes by the one tree; O_d = chain of fma(p_t, v_td)
over tokens, ascending. Folding (M, L, O) with (m, l, o): M' = max(M, m); a = e^(M - M'); b = e^(m - M'); L' = fma(L, a,
l b); O' = fma(O, a, o b). The row's result is O / L. All of it is a function of the row's own position and pages:
neither the step's other rows nor the work split enter. A soft cap holds scores before m is taken; a window leaves out
tokens, and blocks of nothing else; a sink is one more state, (sink, 1, 0), folded last.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from decodepool_kernels.cpu.jit import compiled, intrinsic, types
from decodepool_kernels.cpu.kv import KV_F16, PAGE_TOKENS, widen_head
from decodepool_kernels.cpu.soft_cap import cap_scores
from decodepool_kernels.cpu.vector import ADDRESS, F32, I32, I64, LANES, Emit, Value, constant, vector
from decodepool_kernels.cpu.views import float32_at

GROUP_PAGES = 8
UNIT_ROWS = 16
"""Rows of one session that share a widened block: work split, no arithmetic."""
MOST_QUERIES = 4
"""Queries that run against a block together: 16 sums, a block's row and a factor fit the 32 vector registers."""
ROWS_WORTH_WIDENING = 4
"""Rows from which on a block of f16 is widened once for all instead of in passing; widening is exact."""
TOKEN_VECTORS = PAGE_TOKENS // LANES


def _load_lanes(emit: Emit, is_f16: bool, where: Value, index: int) -> Value:
    return emit.load_f16(where, 2 * LANES * index) if is_f16 else emit.load(where, vector(F32), 4 * LANES * index)


def _emit_cases(builder: Any, narrow: Value, queries: Value, emit_case: Callable[[bool, int], None]) -> None:
    """Emit code for every element type and number of queries, and the choice among them."""
    done, unknown = builder.append_basic_block("done"), builder.append_basic_block("unknown")
    choice = builder.switch(builder.add(builder.mul(narrow, I64(MOST_QUERIES + 1)), queries), unknown)
    for is_f16 in (False, True):
        for count in range(1, MOST_QUERIES + 1):
            block = builder.append_basic_block("case")
            choice.add_case(ir.Constant(I64, is_f16 * (MOST_QUERIES + 1) + count), block)
            builder.position_at_end(block)
            emit_case(is_f16, count)
            builder.branch(done)
    builder.position_at_end(unknown)
    builder.unreachable()
    builder.position_at_end(done)


@intrinsic
def block_scores(
    typing_context: Any, narrow: Any, queries: Any, query: Any, keys: Any, width: Any, scale: Any, scores: Any
) -> Any:
    """Write 64 scores of each of `queries` vectors against keys [width][64], f16 if `narrow`, else f32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, b = Emit(builder), builder
        narrow_value, queries_value, query_at, keys_at, width_value, scale_value, scores_at = arguments
        query_bytes = b.mul(width_value, I64(4))

        def one_case(is_f16: bool, count: int) -> None:
            sums = [[emit.running(constant(0.0)) for _ in range(TOKEN_VECTORS)] for _ in range(count)]
            with cgutils.for_range(b, width_value) as loop:
                row = b.add(keys_at, b.mul(loop.index, I64((2 if is_f16 else 4) * PAGE_TOKENS)))
                lanes = [_load_lanes(emit, is_f16, row, index) for index in range(TOKEN_VECTORS)]
                dim_at = b.add(query_at, b.mul(loop.index, I64(4)))
                for head, totals in enumerate(sums):
                    q = emit.splat(emit.load(b.add(dim_at, b.mul(query_bytes, I64(head))), F32))
                    for key, total in zip(lanes, totals, strict=True):
                        b.store(emit.fma(q, key, b.load(total)), total)
            for index, total in enumerate(itertools.chain(*sums)):
                emit.store(b.fmul(b.load(total), emit.splat(scale_value)), scores_at, 64 * index)

        _emit_cases(b, narrow_value, queries_value, one_case)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, ADDRESS, ADDRESS, types.int64, types.float32, ADDRESS), generate


@intrinsic
def block_softmax(typing_context: Any, scores: Any, first: Any, visible: Any, state: Any) -> Any:
    """Turn 64 scores into p in place, 0 for tokens before `first` and from `visible` on; m and l go to state[0:2]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, b = Emit(builder), builder
        scores_at, first_value, visible_value, state_at = arguments
        begin, limit = (emit.splat(b.trunc(value, I32)) for value in (first_value, visible_value))
        seen, lanes = [], []
        for index in range(TOKEN_VECTORS):
            tokens = vector(I32)([LANES * index + lane for lane in range(LANES)])
            seen.append(b.and_(b.icmp_signed("<", tokens, limit), b.icmp_signed(">=", tokens, begin)))
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

    return types.void(ADDRESS, types.int64, types.int64, ADDRESS), generate


def _weigher(vectors: int) -> Any:
    @intrinsic
    def weigh(
        typing_context: Any,
        narrow: Any,
        queries: Any,
        weights: Any,
        values: Any,
        stride: Any,
        visible: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emit, b = Emit(builder), builder
            narrow_value, queries_value, weights_at, values_at, stride_value, visible_value, out_at, out_bytes = (
                arguments
            )

            def one_case(is_f16: bool, count: int) -> None:
                sums = [[emit.running(constant(0.0)) for _ in range(vectors)] for _ in range(count)]
                with cgutils.for_range(b, visible_value) as loop:
                    row = b.add(values_at, b.mul(loop.index, stride_value))
                    lanes = [_load_lanes(emit, is_f16, row, index) for index in range(vectors)]
                    token_at = b.add(weights_at, b.mul(loop.index, I64(4)))
                    for head, totals in enumerate(sums):
                        p = emit.splat(emit.load(token_at, F32, 4 * PAGE_TOKENS * head))
                        for value, total in zip(lanes, totals, strict=True):
                            b.store(emit.fma(p, value, b.load(total)), total)
                for head, totals in enumerate(sums):
                    for index, total in enumerate(totals):
                        emit.store(b.load(total), b.add(out_at, b.mul(out_bytes, I64(head))), 64 * index)

            _emit_cases(b, narrow_value, queries_value, one_case)
            return context.get_dummy_value()

        return types.void(
            types.int64, types.int64, ADDRESS, ADDRESS, types.int64, types.int64, ADDRESS, types.int64
        ), generate

    return weigh


weigh_one, weigh_four = _weigher(1), _weigher(4)
"""Write 16 (64) lanes of sum_t p_t v_t over `visible` tokens for each query, values being `stride` bytes apart, results
`out_stride`.
"""


@intrinsic
def fold(typing_context: Any, total: Any, part: Any, width: Any) -> Any:
    """Fold one state (m, l, o[width], kept as 16 + width floats) into another; an empty one (l = 0) takes the part as
    it is.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, b = Emit(builder), builder
        total_at, part_at, width_value = arguments
        vectors = b.udiv(width_value, I64(LANES))
        m, weight, part_m, part_weight = (
            emit.load(where, F32, offset) for where in (total_at, part_at) for offset in (0, 4)
        )

        def each_vector(combine: Callable[[Value, Value], Value]) -> None:
            with cgutils.for_range(b, vectors) as loop:
                offset = b.add(b.mul(loop.index, I64(64)), I64(64))
                total_lanes, part_lanes = b.add(total_at, offset), b.add(part_at, offset)
                emit.store(
                    combine(emit.load(total_lanes, vector(F32)), emit.load(part_lanes, vector(F32))), total_lanes
                )

        with b.if_else(b.fcmp_ordered("==", weight, F32(0.0))) as (is_empty, is_not):
            with is_empty:
                emit.store(part_m, total_at)
                emit.store(part_weight, total_at, 4)
                each_vector(lambda _, lanes: lanes)
            with is_not:
                largest = b.select(b.fcmp_ordered(">", m, part_m), m, part_m)
                differences = b.insert_element(emit.splat(b.fsub(m, largest)), b.fsub(part_m, largest), I32(1))
                both = emit.exp(differences)
                a, c = b.extract_element(both, I32(0)), b.extract_element(both, I32(1))
                emit.store(largest, total_at)
                emit.store(emit.call("llvm.fma.f32", weight, a, b.fmul(part_weight, c)), total_at, 4)
                a_lanes, c_lanes = emit.splat(a), emit.splat(c)
                each_vector(lambda lanes, more: emit.fma(lanes, a_lanes, b.fmul(more, c_lanes)))
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, types.int64), generate


@compiled
def block_states(
    narrow: int,
    queries: int,
    query: int,
    keys: Any,
    values: Any,
    width: int,
    scale: Any,
    cap: int,
    first: int,
    visible: int,
    scores: int,
    states: int,
) -> None:
    """Write the states of up to MOST_QUERIES queries, side by side, over tokens [first, visible) of one block."""
    state_bytes = 4 * (LANES + width)
    block_scores(narrow, queries, query, keys, width, scale, scores)
    if cap:
        cap_scores(scores, PAGE_TOKENS * queries, cap)
    for head in range(queries):
        block_softmax(scores + 4 * PAGE_TOKENS * head, first, visible, states + state_bytes * head)
    element_bytes = 2 if narrow else 4
    weights, seen = scores + 4 * first, visible - first
    values += element_bytes * width * first
    dim, out = 0, states + 4 * LANES
    while dim + 4 * LANES <= width:
        where = values + element_bytes * dim
        weigh_four(narrow, queries, weights, where, element_bytes * width, seen, out + 4 * dim, state_bytes)
        dim += 4 * LANES
    while dim < width:
        where = values + element_bytes * dim
        weigh_one(narrow, queries, weights, where, element_bytes * width, seen, out + 4 * dim, state_bytes)
        dim += LANES


@compiled
def clear_state(state: int, width: int) -> None:
    """Make a state empty."""
    float32_at(state, LANES + width)[:] = 0


def unit_scratch_floats(width: int, group_heads: int) -> int:
    """Return the floats one member needs: two widened pages, scores and block states of a few queries, a group's and a
    row's state per query.
    """
    queries = UNIT_ROWS * group_heads
    return 2 * PAGE_TOKENS * width + PAGE_TOKENS * MOST_QUERIES + (LANES + width) * (MOST_QUERIES + 2 * queries)


@compiled
def fold_block_states(groups: int, totals: int, states: int, queries: int, width: int, ends_group: bool) -> None:
    """Fold fresh block states into their groups; a group that ends folds into its row and becomes empty."""
    state_bytes = 4 * (LANES + width)
    for query in range(queries):
        group = groups + query * state_bytes
        fold(group, states + query * state_bytes, width)
        if ends_group:
            fold(totals + query * state_bytes, group, width)
            clear_state(group, width)


@compiled
def fold_sinks(totals: int, queries: int, width: int, sinks: int, state: int) -> None:
    """Fold each query's sink into its row, as a state of one weight and no values, which is written to `state`."""
    scores = float32_at(sinks, queries)
    for query in range(queries):
        clear_state(state, width)
        largest_and_weights = float32_at(state, 2)
        largest_and_weights[0], largest_and_weights[1] = scores[query], 1
        fold(totals + query * 4 * (LANES + width), state, width)


@compiled
def write_outputs(totals: int, queries: int, width: int, out: int) -> None:
    """Write O / L of queries that lie side by side."""
    for query in range(queries):
        state = float32_at(totals + query * 4 * (LANES + width), LANES + width)
        target = float32_at(out + query * width * 4, width)
        for dim in range(width):
            target[dim] = state[LANES + dim] / state[1]


@compiled
def attend_unit(
    kind: int, q: int, q_stride: int, kv_head: int, group_heads: int, width: int, scale: Any,
    key_base: int, value_base: int, page_bytes: int, head_bytes: int, table: Any,
    first_row: int, rows: int, first_position: int, out: int, out_stride: int,
    window: int, sinks: int, cap: int, scratch: int,
) -> None:  # fmt: skip
    """Attend for `rows` consecutive rows of one session and the query heads of one kv head."""
    state_bytes = 4 * (LANES + width)
    widened_values = scratch + 4 * PAGE_TOKENS * width
    scores = widened_values + 4 * PAGE_TOKENS * width
    states = scores + 4 * PAGE_TOKENS * MOST_QUERIES
    groups = states + state_bytes * MOST_QUERIES
    totals = groups + state_bytes * rows * group_heads
    for query in range(2 * rows * group_heads):
        clear_state(groups + query * state_bytes, width)
    narrow = 1 if kind == KV_F16 and rows < ROWS_WORTH_WIDENING else 0
    head_offset = kv_head * group_heads * width * 4
    first_block = max(first_position + 1 - window, 0) // PAGE_TOKENS
    for index in range(first_block, (first_position + rows - 1) // PAGE_TOKENS + 1):
        page = np.int64(table[index]) * page_bytes + kv_head * head_bytes
        keys, values = key_base + page, value_base + page
        if narrow == 0:
            keys = widen_head(kind, keys, True, width, scratch)
            values = widen_head(kind, values, False, width, widened_values)
        for row in range(rows):
            position = first_position + row
            visible = min(position + 1 - index * PAGE_TOKENS, PAGE_TOKENS)
            first = max(position + 1 - window - index * PAGE_TOKENS, 0)
            if first >= visible:
                continue
            ends = index % GROUP_PAGES == GROUP_PAGES - 1 or index == position // PAGE_TOKENS
            for head in range(0, group_heads, MOST_QUERIES):
                queries = min(MOST_QUERIES, group_heads - head)
                query = q + (first_row + row) * q_stride + head_offset + head * width * 4
                block_states(narrow, queries, query, keys, values, width, scale, cap, first, visible, scores, states)
                offset = (row * group_heads + head) * state_bytes
                fold_block_states(groups + offset, totals + offset, states, queries, width, ends)
    for row in range(rows):
        place, total = out + (first_row + row) * out_stride + head_offset, totals + row * group_heads * state_bytes
        if sinks:
            fold_sinks(total, group_heads, width, sinks + 4 * kv_head * group_heads, states)
        write_outputs(total, group_heads, width, place)


@compiled
def attention(
    kind: int, q: int, stride: int, kv_heads: int, group_heads: int, width: int, scale: Any,
    key_base: int, value_base: int, page_bytes: int, tables: Any, table_width: int, row_tables: Any, positions: Any,
    unit_rows: Any, unit_counts: Any, out: int, out_stride: int,
    window: int, sinks: int, cap: int, scratch: int, first: int, last: int,
) -> None:  # fmt: skip
    """Attend for items (unit, kv head); a unit is up to UNIT_ROWS consecutive rows of one session."""
    for item in range(first, last):
        unit, kv_head = item // kv_heads, item % kv_heads
        row = unit_rows[unit]
        start = row_tables[row] * table_width
        attend_unit(
            kind, q, stride, kv_head, group_heads, width, scale,
            key_base, value_base, page_bytes, page_bytes // kv_heads, tables[start : start + table_width],
            row, unit_counts[unit], positions[row], out, out_stride, window, sinks, cap, scratch,
        )  # fmt: skip
