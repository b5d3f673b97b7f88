"""Single-element arithmetic that numba has no name for."""

from __future__ import annotations

from typing import Any

from decodepool_kernels.cpu.jit import intrinsic, types
from decodepool_kernels.cpu.vector import ADDRESS, F16, F32, I8, Emit


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c in f32, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return Emit(builder).call("llvm.fma.f32", *arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def exp(typing_context: Any, x: Any) -> Any:
    """Return e^x of one f32 by the polynomial of `Emit.exp`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emit(builder)
        return builder.extract_element(emit.exp(emit.splat(arguments[0])), context.get_constant(types.int32, 0))

    return types.float32(types.float32), generate


@intrinsic
def store_f16(typing_context: Any, value: Any, where: Any) -> Any:
    """Store an f32 as f16, rounded to nearest even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        Emit(builder).store(builder.fptrunc(arguments[0], F16), arguments[1])
        return context.get_dummy_value()

    return types.void(types.float32, ADDRESS), generate


@intrinsic
def load_f16(typing_context: Any, where: Any) -> Any:
    """Load one f16 as f32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(Emit(builder).load(arguments[0], F16), F32)

    return types.float32(ADDRESS), generate


@intrinsic
def round_f16(typing_context: Any, value: Any) -> Any:
    """Return an f32 rounded to the nearest f16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.fptrunc(arguments[0], F16), F32)

    return types.float32(types.float32), generate


@intrinsic
def store_i8(typing_context: Any, value: Any, where: Any) -> Any:
    """Store the low byte of an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        Emit(builder).store(builder.trunc(arguments[0], I8), arguments[1])
        return context.get_dummy_value()

    return types.void(types.int32, ADDRESS), generate


@intrinsic
def load_i8(typing_context: Any, where: Any) -> Any:
    """Load one signed byte as int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.sext(Emit(builder).load(arguments[0], I8), context.get_value_type(types.int32))

    return types.int32(ADDRESS), generate


@intrinsic
def load_u8(typing_context: Any, where: Any) -> Any:
    """Load one unsigned byte as int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(Emit(builder).load(arguments[0], I8), context.get_value_type(types.int32))

    return types.int32(ADDRESS), generate


@intrinsic
def widen_f16(typing_context: Any, source: Any, target: Any) -> Any:
    """Widen 16 f16 at `source` to f32 at `target`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emit(builder)
        emit.store(emit.load_f16(arguments[0]), arguments[1])
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS), generate
