"""Operations that touch each element once: residual sums and the gated activation."""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.core import types
from numba.extending import intrinsic

from .team import share
from .vector import ADDRESS, F32, Emit, constant, vector

VECTOR_BYTES = 64


@intrinsic  # type: ignore[untyped-decorator]
def _add_lanes(typing_context: Any, a: Any, b: Any, out: Any) -> Any:
    """16 lanes of out = a + b."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emit(builder)
        left, right = (emit.load(where, vector(F32)) for where in arguments[:2])
        emit.store(builder.fadd(left, right), arguments[2])
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, ADDRESS), generate


@intrinsic  # type: ignore[untyped-decorator]
def _swiglu_lanes(typing_context: Any, gate: Any, up: Any, out: Any) -> Any:
    """16 lanes of out = gate / (1 + e^-gate) * up; e^-gate is held at e^88, where the quotient is already nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, b = Emit(builder), builder
        gate_lanes, up_lanes = (emit.load(where, vector(F32)) for where in arguments[:2])
        negated = b.fneg(gate_lanes)
        held = b.select(b.fcmp_ordered(">", negated, constant(88.0)), constant(88.0), negated)
        silu = b.fdiv(gate_lanes, b.fadd(constant(1.0), emit.exp(held)))
        emit.store(b.fmul(silu, up_lanes), arguments[2])
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, ADDRESS), generate


@njit  # type: ignore[untyped-decorator]
def add(a: int, b: int, out: int, vectors: int, member: int, members: int) -> None:
    """out = a + b over this member's share of `vectors` runs of 16 floats."""
    first, last = share(vectors, member, members)
    for item in range(first, last):
        offset = item * VECTOR_BYTES
        _add_lanes(a + offset, b + offset, out + offset)


@njit  # type: ignore[untyped-decorator]
def swiglu(gate: int, up: int, out: int, vectors: int, member: int, members: int) -> None:
    """out = silu(gate) * up over this member's share of `vectors` runs of 16 floats."""
    first, last = share(vectors, member, members)
    for item in range(first, last):
        offset = item * VECTOR_BYTES
        _swiglu_lanes(gate + offset, up + offset, out + offset)
