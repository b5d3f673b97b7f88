"""y = W x for F32, F16 and BF16 weights, f32 activations.

A tile is 16 outputs, one in each lane, stored input by input. Per output and block of 32 inputs, in ascending order:
t = 0; t = fma(w_k, x_k, t) for each k;  y = y + t. Weights of 16 bits widen exactly.
"""

from __future__ import annotations

from typing import Any

from decodepool_sizing.layouts import BLOCK_INPUTS, FLOAT_KINDS
from llvmlite import ir
from numba.core import cgutils

from decodepool_kernels.cpu.jit import compiled, intrinsic, types
from decodepool_kernels.cpu.matmul import TILE_BYTES, clear_totals, write_tile
from decodepool_kernels.cpu.vector import ADDRESS, F32, I16, I32, I64, LANES, Emit, Value, constant, vector


def _load_weights(emit: Emit, kind: str, weights: Value, k: int) -> Value:
    if kind == "F32":
        return emit.load(weights, vector(F32), 4 * LANES * k)
    if kind == "F16":
        return emit.load_f16(weights, 2 * LANES * k)
    b = emit.builder
    bits = b.zext(emit.load(weights, vector(I16), 2 * LANES * k), vector(I32))
    return b.bitcast(b.shl(bits, constant(16, I32)), vector(F32))


def _fold_rows(
    emit: Emit, kind: str, weights: Value, inputs: Value, input_stride: Value, totals: Value, rows: Value
) -> None:
    b = emit.builder
    with cgutils.for_range(b, rows) as loop:
        x = b.add(inputs, b.mul(loop.index, input_stride))
        where = b.add(totals, b.mul(loop.index, I64(TILE_BYTES)))
        t = constant(0.0)
        for k in range(BLOCK_INPUTS):
            t = emit.fma(_load_weights(emit, kind, weights, k), emit.splat(emit.load(x, F32, 4 * k)), t)
        emit.store(b.fadd(emit.load(where, vector(F32)), t), where)


@intrinsic
def fold_float_block(
    typing_context: Any, kind: Any, weights: Any, inputs: Any, stride: Any, totals: Any, rows: Any
) -> Any:
    """Fold one block of one tile into every row's totals."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind_value, *operands = arguments
        done, unknown = builder.append_basic_block("done"), builder.append_basic_block("unknown")
        choice = builder.switch(kind_value, unknown)
        for index, name in enumerate(FLOAT_KINDS):
            choice.add_case(ir.Constant(I64, index), block := builder.append_basic_block(name))
            builder.position_at_end(block)
            _fold_rows(Emit(builder), name, *operands)
            builder.branch(done)
        builder.position_at_end(unknown)
        builder.unreachable()
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(types.int64, ADDRESS, ADDRESS, types.int64, ADDRESS, types.int64), generate


@compiled
def matmul_float(
    kind: int, weights: int, block_bytes: int, blocks: int, inputs: int, input_stride: int,
    bias: int, out: int, out_stride: int, out_rows: Any, rows: int, totals: int, first: int, last: int,
) -> None:  # fmt: skip
    """Multiply tiles with every row."""
    for tile in range(first, last):
        clear_totals(totals, rows)
        for block in range(blocks):
            where = weights + (tile * blocks + block) * block_bytes
            fold_float_block(kind, where, inputs + block * BLOCK_INPUTS * 4, input_stride, totals, rows)
        write_tile(totals, bias, out, out_stride, out_rows, tile, rows)
