"""Activations as 16-bit integers per block of 32: d = amax / 32512, q = rint(x * (32512 / amax)), q = 256 hi + lo with
signed bytes.

32512 = 127 * 256 is the largest magnitude whose high byte fits. A block whose magnitudes all lie under 2^-100 is zero.
A block that holds NaN or infinity gets d = NaN, so that the fault stays in its row and is seen in its logits.
"""

from __future__ import annotations

from typing import Any

from decodepool_sizing.layouts import BLOCK_INPUTS
from llvmlite import ir

from decodepool_kernels.cpu.jit import compiled, intrinsic, types
from decodepool_kernels.cpu.matmul import ACTIVATION_BYTES, D_OFFSET, HALF_SUMS_OFFSET, SUM_OFFSET
from decodepool_kernels.cpu.vector import ADDRESS, F32, I8, I32, LANES, Emit, Value, constant, vector

LARGEST = 32512.0
SMALLEST_BITS = (127 - 100) << 23
INFINITY_BITS = 0x7F800000


def _largest_magnitude(emit: Emit, halves: list[Value]) -> Value:
    """Return the bits of the largest |x|: as integers they order like the floats, with infinity and NaN on top."""
    b = emit.builder
    bits = [b.and_(b.bitcast(half, vector(I32)), constant(0x7FFFFFFF, I32)) for half in halves]

    def larger(a: Value, c: Value) -> Value:
        return b.select(b.icmp_signed(">", a, c), a, c)

    return emit.fold(larger(*bits), larger)


def _split(emit: Emit, half: Value, inverse: Value) -> tuple[Value, Value, Value]:
    """Return q (i32), hi and lo (i8) of 16 activations."""
    b = emit.builder
    q = emit.to_integers(emit.call("llvm.rint.v16f32", b.fmul(half, emit.splat(inverse))))
    high = b.ashr(b.add(q, constant(128, I32)), constant(8, I32))
    low = b.sub(q, b.shl(high, constant(8, I32)))
    return q, b.trunc(high, vector(I8)), b.trunc(low, vector(I8))


@intrinsic
def quantise_block(typing_context: Any, source: Any, target: Any) -> Any:
    """Quantise the 32 f32 at `source` into the activation record at `target`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, b = Emit(builder), builder
        source_at, target_at = arguments
        halves = [emit.load(source_at, vector(F32), 4 * LANES * half) for half in range(2)]
        bits = _largest_magnitude(emit, halves)
        tiny = b.icmp_signed("<", bits, I32(SMALLEST_BITS))
        amax = b.select(tiny, F32(1.0), b.bitcast(bits, F32))
        inverse = b.select(tiny, F32(0.0), b.fdiv(F32(LARGEST), amax))
        d = b.select(
            b.icmp_signed(">=", bits, I32(INFINITY_BITS)), ir.Constant(F32, float("nan")), b.fdiv(amax, F32(LARGEST))
        )
        sums = []
        for index, half in enumerate(halves):
            q, high, low = _split(emit, half, inverse)
            emit.store(high, target_at, LANES * index)
            emit.store(low, target_at, BLOCK_INPUTS + LANES * index)
            sums.append(emit.fold(q, b.add))
            emit.store(sums[-1], target_at, HALF_SUMS_OFFSET + 4 * index)
        emit.store(d, target_at, D_OFFSET)
        emit.store(b.add(*sums), target_at, SUM_OFFSET)
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS), generate


@compiled
def quantise(source: int, source_stride: int, target: int, rows: int, first: int, last: int) -> None:
    """Quantise items (block, row); records lie block by block, rows inside."""
    for item in range(first, last):
        block, row = item // rows, item % rows
        quantise_block(source + row * source_stride + block * BLOCK_INPUTS * 4, target + item * ACTIVATION_BYTES)
