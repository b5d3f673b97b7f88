"""RMS norm: y = (x * r) * w with r = 1 / sqrt(mean(x^2) + eps), all f32.

Lane l sums fma(x, x, .) over x[16 j + l] for ascending j; lanes fold by the one tree of vector.py. Padding past the
width is zero.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils

from decodepool_kernels.cpu.jit import compiled, intrinsic, types
from decodepool_kernels.cpu.vector import ADDRESS, F32, I64, Emit, constant, vector


@intrinsic
def _normalise(typing_context: Any, x: Any, weight: Any, out: Any, vectors: Any, width: Any, epsilon: Any) -> Any:
    """Normalise one vector of `width` floats kept in `vectors` runs of 16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, b = Emit(builder), builder
        x_at, weight_at, out_at, count, width_value, epsilon_value = arguments
        squares = emit.running(constant(0.0))
        with cgutils.for_range(b, count) as loop:
            lanes = emit.load(b.add(x_at, b.mul(loop.index, I64(64))), vector(F32))
            b.store(emit.fma(lanes, lanes, b.load(squares)), squares)
        mean = b.fdiv(emit.sum_lanes(b.load(squares)), width_value)
        root = emit.call("llvm.sqrt.f32", b.fadd(mean, epsilon_value))
        r = emit.splat(b.fdiv(F32(1.0), root))
        with cgutils.for_range(b, count) as loop:
            offset = b.mul(loop.index, I64(64))
            scaled = b.fmul(emit.load(b.add(x_at, offset), vector(F32)), r)
            emit.store(b.fmul(scaled, emit.load(b.add(weight_at, offset), vector(F32))), b.add(out_at, offset))
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, ADDRESS, types.int64, types.float32, types.float32), generate


@compiled
def norm(
    x: int,
    weight: int,
    out: int,
    stride: int,
    width: int,
    heads: int,
    epsilon: Any,
    first: int,
    last: int,
) -> None:
    """Normalise items (row, head) of `width` floats; heads lie side by side in a row of `stride` bytes."""
    vectors = (width + 15) // 16
    for item in range(first, last):
        offset = item // heads * stride + item % heads * width * 4
        _normalise(x + offset, weight, out + offset, vectors, width, epsilon)
