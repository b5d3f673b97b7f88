"""Scores held softly within a cap: cap tanh(score / cap), as the score times a ratio of two polynomials in
(score / cap)^2; docs/arithmetic.md has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from decodepool_kernels.cpu.jit import intrinsic, types
from decodepool_kernels.cpu.vector import ADDRESS, F32, I64, LANES, Emit, Value, constant, vector

MOST_CAPS = 9.0
"""A score is held within so many caps first: tanh is 1 there."""
NUMERATOR = (1.3419828804e-8, 2.0661267627e-5, 3.4989963751e-3, 1.3383980095e-1, 1.0)
DENOMINATOR = (7.8047321495e-7, 3.2910387381e-4, 2.5890206918e-2, 4.6717301011e-1, 1.0)
"""From the highest power down."""


def _polynomial(emit: Emit, coefficients: Sequence[float], z: Value) -> Value:
    value = constant(coefficients[0])
    for coefficient in coefficients[1:]:
        value = emit.fma(value, z, constant(coefficient))
    return value


def _capped(emit: Emit, score: Value, limit: Value, inverse: Value) -> Value:
    """Return 16 scores held; not a number stays so."""
    b = emit.builder
    lower = b.fneg(limit)
    above, below = b.fcmp_ordered(">", score, limit), b.fcmp_ordered("<", score, lower)
    held = b.select(above, limit, b.select(below, lower, score))
    y = b.fmul(held, inverse)
    z = b.fmul(y, y)
    return b.fmul(held, b.fdiv(_polynomial(emit, NUMERATOR, z), _polynomial(emit, DENOMINATOR, z)))


@intrinsic
def cap_scores(typing_context: Any, scores: Any, count: Any, cap: Any) -> Any:
    """Hold `count` scores, a multiple of 16, in place; `cap` is the address of two f32, the cap and 1 / cap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit, b = Emit(builder), builder
        scores_at, count_value, cap_at = arguments
        limit = emit.splat(b.fmul(ir.Constant(F32, MOST_CAPS), emit.load(cap_at, F32)))
        inverse = emit.splat(emit.load(cap_at, F32, 4))
        with cgutils.for_range(b, b.udiv(count_value, I64(LANES))) as loop:
            where = b.add(scores_at, b.mul(loop.index, I64(4 * LANES)))
            emit.store(_capped(emit, emit.load(where, vector(F32)), limit, inverse), where)
        return context.get_dummy_value()

    return types.void(ADDRESS, types.int64, ADDRESS), generate
