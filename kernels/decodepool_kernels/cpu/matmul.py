"""y = W x for quantised W: exact integer sums inside a block of 32 inputs, one ordered float fold over blocks.

Activations come as 16-bit integers per block of 32 (see quantise.py), split in two signed bytes: q = 256 hi + lo. A
tile is 16 outputs, one in each lane, so no sum crosses lanes. Of a weight's block, once loaded, every row of the step
makes use: that is what a step's rows share. Per output and block, in ascending order:  t = f32(I) * d;  y = fma(t,
scale, y);  with a minimum y = fma(f32(S) * d, minimum, y) where I = sum((code - zero) q) and S = sum(q) are exact
integers and d is the activation block's scale.
"""

from __future__ import annotations

from typing import Any

from decodepool_sizing.layouts import BLOCK_DOTS, BLOCK_INPUTS, LAYOUT_KINDS, TILE_OUTPUTS, QuantLayout
from llvmlite import ir
from numba.core import cgutils

from decodepool_kernels.cpu.dot import DOTS
from decodepool_kernels.cpu.features import HOST_ISA
from decodepool_kernels.cpu.jit import compiled, intrinsic, types
from decodepool_kernels.cpu.vector import ADDRESS, F32, I8, I16, I32, I64, LANES, Emit, Value, constant, vector

TILE_BYTES = TILE_OUTPUTS * 4
ACTIVATION_BYTES = 80
"""One row's block of 32: hi (32 x s8), lo (32 x s8), d (f32), S of each half and of the whole (3 x i32)."""
D_OFFSET, HALF_SUMS_OFFSET, SUM_OFFSET = 64, 68, 76


def _load_codes(emit: Emit, codes: Value, layout: QuantLayout) -> list[Value]:
    """Return the block's 8 groups, each 64 x u8: lane i's bytes 4i..4i+3 are 4 inputs of output i."""
    loaded = [emit.load(codes, vector(I8, 64), 64 * g) for g in range(BLOCK_DOTS * layout.code_bits // 8)]
    if layout.code_bits == 8:
        return loaded
    b, nibble = emit.builder, constant(15, I8, 64)
    shifted = [b.bitcast(b.lshr(b.bitcast(g, vector(I16, 32)), constant(4, I16, 32)), vector(I8, 64)) for g in loaded]
    return [b.and_(g, nibble) for g in loaded] + [b.and_(g, nibble) for g in shifted]


def _load_scale(emit: Emit, scales: Value, layout: QuantLayout, part: int) -> Value:
    offset = part * LANES * layout.scale_bytes
    return emit.load_f16(scales, offset) if layout.scale_bytes == 2 else emit.load(scales, vector(F32), offset)


def _fold_rows(
    emit: Emit,
    isa: str,
    layout: QuantLayout,
    codes: Value,
    scales: Value,
    zero: Value,
    operands: tuple[Value, Value, Value],
) -> None:
    """Emit the loop over rows for one tile and block."""
    b = emit.builder
    activations, totals, rows = operands
    groups = _load_codes(emit, codes, layout)
    parts = BLOCK_INPUTS // layout.sub_block
    per_part = BLOCK_DOTS // parts
    scale = [_load_scale(emit, scales, layout, part) for part in range(parts)]
    minimum = [_load_scale(emit, scales, layout, parts + part) for part in range(parts)] if layout.has_minimum else []
    zeros = emit.splat(zero)
    with cgutils.for_range(b, rows) as loop:
        activation = b.add(activations, b.mul(loop.index, I64(ACTIVATION_BYTES)))
        where = b.add(totals, b.mul(loop.index, I64(TILE_BYTES)))
        d = emit.splat(emit.load(activation, F32, D_OFFSET))
        total = emit.load(where, vector(F32))
        for part in range(parts):
            owned = [(g, groups[g]) for g in range(part * per_part, (part + 1) * per_part)]
            q_sum = emit.splat(emit.load(activation, I32, SUM_OFFSET if parts == 1 else HALF_SUMS_OFFSET + 4 * part))
            product = b.sub(DOTS[isa](emit, owned, activation), b.mul(zeros, q_sum))
            total = emit.fma(b.fmul(b.sitofp(product, vector(F32)), d), scale[part], total)
            if layout.has_minimum:
                total = emit.fma(b.fmul(b.sitofp(q_sum, vector(F32)), d), minimum[part], total)
        emit.store(total, where)


def block_product(isa: str) -> Any:
    """Return the compiled-code function `(kind, codes, scales, zero, activations, totals, rows)` that folds one block
    of one tile into every row.
    """

    @intrinsic
    def fold_block(
        typing_context: Any, kind: Any, codes: Any, scales: Any, zero: Any, activations: Any, totals: Any, rows: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind_value, codes_at, scales_at, zero_value, *operands = arguments
            done = builder.append_basic_block("done")
            unknown = builder.append_basic_block("unknown")
            choice = builder.switch(kind_value, unknown)
            for index, layout in enumerate(LAYOUT_KINDS):
                choice.add_case(ir.Constant(I64, index), block := builder.append_basic_block("kind"))
                builder.position_at_end(block)
                _fold_rows(Emit(builder), isa, layout, codes_at, scales_at, zero_value, tuple(operands))
                builder.branch(done)
            builder.position_at_end(unknown)
            builder.unreachable()
            builder.position_at_end(done)
            return context.get_dummy_value()

        return types.void(types.int64, ADDRESS, ADDRESS, types.int32, ADDRESS, ADDRESS, types.int64), generate

    return fold_block


@intrinsic
def clear_totals(typing_context: Any, totals: Any, rows: Any) -> Any:
    """Set every row's 16 totals to zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emit(builder)
        with cgutils.for_range(builder, arguments[1]) as loop:
            emit.store(constant(0.0), builder.add(arguments[0], builder.mul(loop.index, I64(TILE_BYTES))))
        return context.get_dummy_value()

    return types.void(ADDRESS, types.int64), generate


@intrinsic
def write_total(typing_context: Any, total: Any, bias: Any, out: Any) -> Any:
    """Store one row's 16 totals, plus the bias where its address is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emit(builder)
        total_at, bias_at, out_at = arguments
        value = emit.load(total_at, vector(F32))
        has_bias = builder.icmp_signed("!=", bias_at, I64(0))
        with builder.if_else(has_bias) as (then, otherwise):
            with then:
                emit.store(builder.fadd(value, emit.load(bias_at, vector(F32))), out_at)
            with otherwise:
                emit.store(value, out_at)
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, ADDRESS), generate


fold_block = block_product(HOST_ISA)


@compiled
def write_tile(totals: int, bias: int, out: int, out_stride: int, out_rows: Any, tile: int, rows: int) -> None:
    """Store a finished tile of every row, row r at out row `out_rows[r]`, or at r where that is empty."""
    bias_at = bias + tile * TILE_BYTES if bias else 0
    for row in range(rows):
        place = out_rows[row] if out_rows.size else row
        write_total(totals + row * TILE_BYTES, bias_at, out + place * out_stride + tile * TILE_BYTES)


@compiled
def matmul(
    kind: int, codes: int, scales: int, zero: Any, code_bytes: int, scale_bytes: int, blocks: int,
    activations: int, bias: int, out: int, out_stride: int, out_rows: Any, rows: int, totals: int,
    first: int, last: int,
) -> None:  # fmt: skip
    """Multiply tiles with every row. `code_bytes` and `scale_bytes` are those of one block of a tile."""
    for tile in range(first, last):
        clear_totals(totals, rows)
        for block in range(blocks):
            index = tile * blocks + block
            row_block = activations + block * rows * ACTIVATION_BYTES
            fold_block(kind, codes + index * code_bytes, scales + index * scale_bytes, zero, row_block, totals, rows)
        write_tile(totals, bias, out, out_stride, out_rows, tile, rows)
