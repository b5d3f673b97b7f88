"""A small vocabulary of vector instructions for the hot loops, written as LLVM IR through numba intrinsics.

numba compiles scalar loops and leaves their vectorisation, and so which sums happen in which lane, to LLVM. Here the
lanes are written down: a vector is 16 f32 or i32, every rounding is an explicit instruction, and any CPU with the
baseline features gives the same bits. What may differ between hosts is only integer arithmetic, which is exact: see
dot.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from decodepool_kernels.cpu.jit import types

LANES = 16

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()

Value = Any
"""An `llvmlite.ir.Value`; llvmlite ships no types."""

ADDRESS = types.int64


def vector(element: Any, count: int = LANES) -> Any:
    """Return the IR type of `count` lanes of `element`."""
    return ir.VectorType(element, count)


def constant(value: float, element: Any = F32, count: int = LANES) -> Value:
    """Return a vector with `value` in every lane."""
    return ir.Constant(vector(element, count), [value] * count)


def shuffled(builder: Any, source: Value, lanes: Sequence[int]) -> Value:
    """Return the given lanes of a vector."""
    undefined = ir.Constant(source.type, ir.Undefined)
    return builder.shuffle_vector(source, undefined, ir.Constant(vector(I32, len(lanes)), list(lanes)))


@dataclass(frozen=True)
class Emit:
    """Emits vector code at the end of `builder`'s block. Addresses are i64 byte addresses."""

    builder: Any

    def at(self, address: Value, offset_bytes: int) -> Value:
        """Return `address` moved by a constant number of bytes."""
        return self.builder.add(address, I64(offset_bytes)) if offset_bytes else address

    def load(self, address: Value, kind: Any, offset_bytes: int = 0) -> Value:
        """Load one `kind` (scalar or vector) from any alignment."""
        pointer = self.builder.inttoptr(self.at(address, offset_bytes), kind.as_pointer())
        loaded = self.builder.load(pointer)
        loaded.align = 1
        return loaded

    def store(self, value: Value, address: Value, offset_bytes: int = 0) -> None:
        """Store a scalar or vector at any alignment."""
        pointer = self.builder.inttoptr(self.at(address, offset_bytes), value.type.as_pointer())
        self.builder.store(value, pointer).align = 1

    def running(self, start: Value) -> Value:
        """Return a place for a value that a loop changes; LLVM keeps it in a register."""
        return cgutils.alloca_once_value(self.builder, start)  # type: ignore[no-untyped-call]

    def splat(self, scalar: Value, count: int = LANES) -> Value:
        """Return a vector with `scalar` in every lane."""
        undefined = ir.Constant(vector(scalar.type, count), ir.Undefined)
        return shuffled(self.builder, self.builder.insert_element(undefined, scalar, I32(0)), [0] * count)

    def call(self, name: str, *operands: Value, result: Any = None) -> Value:
        """Call an LLVM intrinsic; the result has the first operand's type unless said."""
        kind = result if result is not None else operands[0].type
        module = self.builder.module
        signature = ir.FunctionType(kind, [operand.type for operand in operands])
        function = module.globals.get(name) or ir.Function(module, signature, name)
        return self.builder.call(function, operands)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once."""
        return self.call(f"llvm.fma.v{a.type.count}f32", a, b, c)

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the larger, lane by lane; neither holds NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def fold(self, source: Value, combine: Any) -> Value:
        """Combine 16 lanes into one scalar: lane i with lane i + 8, then 4, 2, 1. The one tree every horizontal sum
        uses.
        """
        width = LANES
        while width > 1:
            width //= 2
            low = shuffled(self.builder, source, range(width))
            high = shuffled(self.builder, source, range(width, 2 * width))
            source = combine(low, high)
        return self.builder.extract_element(source, I32(0))

    def sum_lanes(self, source: Value) -> Value:
        """Return the sum of all lanes by `fold`."""
        return self.fold(source, self.builder.fadd)

    def max_lanes(self, source: Value) -> Value:
        """Return the largest lane."""
        return self.fold(source, self.maximum)

    def load_f16(self, address: Value, offset_bytes: int = 0, count: int = LANES) -> Value:
        """Load f16 lanes as f32 (exact)."""
        return self.builder.fpext(self.load(address, vector(F16, count), offset_bytes), vector(F32, count))

    def to_integers(self, x: Value) -> Value:
        """Return 16 f32 of whole numbers as i32; NaN gives 0, where a plain conversion would be undefined."""
        return self.call("llvm.fptosi.sat.v16i32.v16f32", x, result=vector(I32))

    def exp(self, x: Value) -> Value:
        """Return e^x for x <= 88 by Cephes' polynomial, within 2 ulp; exactly 0 below -87; NaN stays NaN."""
        b = self.builder
        small = b.fcmp_ordered("<", x, constant(-87.0))
        clamped = b.select(small, constant(-87.0), x)
        n = self.call("llvm.rint.v16f32", b.fmul(clamped, constant(1.44269504088896341)))
        r = self.fma(n, constant(-0.693359375), clamped)
        r = self.fma(n, constant(2.12194440e-4), r)
        p = constant(1.9875691500e-4)
        for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = self.fma(p, r, constant(coefficient))
        p = self.fma(b.fmul(r, r), p, b.fadd(r, constant(1.0)))
        exponent = b.shl(b.add(self.to_integers(n), constant(127, I32)), constant(23, I32))
        result = b.fmul(p, b.bitcast(exponent, vector(F32)))
        return b.select(small, constant(0.0), result)
