"""Operations that touch each element once: residual sums and the gated activation."""

from __future__ import annotations

from typing import Any

from decodepool_kernels.cpu.jit import compiled, intrinsic, types
from decodepool_kernels.cpu.vector import ADDRESS, F32, Emit, constant, vector

VECTOR_BYTES = 64


@intrinsic
def _add_lanes(typing_context: Any, a: Any, b: Any, out: Any) -> Any:
    """16 lanes of out = a + b."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emit(builder)
        left, right = (emit.load(where, vector(F32)) for where in arguments[:2])
        emit.store(builder.fadd(left, right), arguments[2])
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, ADDRESS), generate


@intrinsic
def _swiglu_lanes(typing_context: Any, gate: Any, up: Any, out: Any) -> Any:
    """16 lanes of out = g / (1 + e^-g) * up. g is held at -88 from below: there the quotient is already nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, b = Emit(builder), builder
        gate_lanes, up_lanes = (emit.load(where, vector(F32)) for where in arguments[:2])
        held = b.select(b.fcmp_ordered("<", gate_lanes, constant(-88.0)), constant(-88.0), gate_lanes)
        silu = b.fdiv(held, b.fadd(constant(1.0), emit.exp(b.fneg(held))))
        emit.store(b.fmul(silu, up_lanes), arguments[2])
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, ADDRESS), generate


@compiled
def add(a: int, b: int, out: int, first: int, last: int) -> None:
    """out = a + b, items being runs of 16 floats."""
    for item in range(first, last):
        offset = item * VECTOR_BYTES
        _add_lanes(a + offset, b + offset, out + offset)


@compiled
def swiglu(gate: int, up: int, out: int, first: int, last: int) -> None:
    """out = silu(gate) * up, items being runs of 16 floats."""
    for item in range(first, last):
        offset = item * VECTOR_BYTES
        _swiglu_lanes(gate + offset, up + offset, out + offset)
