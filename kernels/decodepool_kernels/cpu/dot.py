"""sum(code * q) over part of a block, for 16 outputs at once: exact in integers, so each instruction set may do it its
own way.

Codes come in groups of 64 x u8 (lane i: 4 inputs of output i); an activation record holds q = 256 hi + lo as two runs
of 32 signed bytes. With codes up to 255 and |q| up to 32512, 32 products sum to at most 265,297,920: no partial sum
leaves i32.
"""

from __future__ import annotations

from collections.abc import Callable

from decodepool_sizing.layouts import BLOCK_INPUTS, DOT_INPUTS

from decodepool_kernels.cpu.vector import I8, I16, I32, Emit, Value, constant, shuffled, vector

Groups = list[tuple[int, Value]]
"""Groups of codes with their number within the block."""


def _bytes_of(emit: Emit, activation: Value, index: int) -> tuple[Value, Value]:
    """Return a group's 4 high and 4 low bytes, each as one i32."""
    offset = DOT_INPUTS * index
    return emit.load(activation, I32, offset), emit.load(activation, I32, BLOCK_INPUTS + offset)


def _joined(emit: Emit, high: Value, low: Value) -> Value:
    return emit.builder.add(emit.builder.shl(high, constant(8, I32)), low)


def sum_by_vnni(emit: Emit, groups: Groups, activation: Value) -> Value:
    """AVX-512 VNNI: one instruction multiplies 64 codes by 4 bytes and adds each four products."""
    high = low = constant(0, I32)
    for index, codes in groups:
        words = emit.builder.bitcast(codes, vector(I32))
        high_bytes, low_bytes = _bytes_of(emit, activation, index)
        high = emit.call("llvm.x86.avx512.vpdpbusd.512", high, words, emit.splat(high_bytes))
        low = emit.call("llvm.x86.avx512.vpdpbusd.512", low, words, emit.splat(low_bytes))
    return _joined(emit, high, low)


def sum_by_pairs(emit: Emit, groups: Groups, activation: Value) -> Value:
    """AVX2: 16-bit codes times 16-bit q, two products an i32; the two halves of each output are added once a block."""
    b = emit.builder
    totals = [constant(0, I32, 8) for _ in range(4)]
    for index, codes in groups:
        high, low = (
            b.sext(b.bitcast(part, vector(I8, 4)), vector(I16, 4)) for part in _bytes_of(emit, activation, index)
        )
        q = b.add(b.shl(high, constant(8, I16, 4)), low)
        repeated = shuffled(b, q, [lane % 4 for lane in range(16)])
        for quarter in range(4):
            wide = b.zext(shuffled(b, codes, range(16 * quarter, 16 * quarter + 16)), vector(I16))
            products = emit.call("llvm.x86.avx2.pmadd.wd", wide, repeated, result=vector(I32, 8))
            totals[quarter] = b.add(totals[quarter], products)
    halves = [b.shuffle_vector(totals[i], totals[i + 1], vector(I32)(list(range(16)))) for i in (0, 2)]
    picked = [b.shuffle_vector(*halves, vector(I32)(list(range(first, 32, 2)))) for first in (0, 1)]
    return b.add(*picked)


def sum_by_lanes(emit: Emit, groups: Groups, activation: Value) -> Value:
    """Any CPU: plain 32-bit products."""
    b = emit.builder
    total = constant(0, I32)
    for index, codes in groups:
        high, low = (
            b.sext(b.bitcast(part, vector(I8, 4)), vector(I32, 4)) for part in _bytes_of(emit, activation, index)
        )
        q = b.add(b.shl(high, constant(8, I32, 4)), low)
        wide = b.zext(codes, vector(I32, 64))
        for k in range(DOT_INPUTS):
            lanes = shuffled(b, wide, range(k, 64, DOT_INPUTS))
            total = b.add(total, b.mul(lanes, emit.splat(b.extract_element(q, I32(k)))))
    return total


DOTS: dict[str, Callable[[Emit, Groups, Value], Value]] = {
    "vnni": sum_by_vnni,
    "avx2": sum_by_pairs,
    "generic": sum_by_lanes,
}
"""By instruction set, as `features.HOST_ISA` names it."""
