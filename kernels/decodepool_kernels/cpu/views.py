"""Arrays seen from an address inside compiled code."""

from __future__ import annotations

from typing import Any

from numba import carray  # type: ignore[attr-defined]  # its stubs leave it out

from decodepool_kernels.cpu.jit import compiled, intrinsic, types


def _pointer(element: Any) -> Any:
    @intrinsic
    def pointer(typing_context: Any, where: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate

    return pointer


_float32_pointer = _pointer(types.float32)
_float64_pointer = _pointer(types.float64)


@compiled
def float32_at(where: int, count: int) -> Any:
    """Return the `count` float32 at an address."""
    return carray(_float32_pointer(where), (count,))


@compiled
def float64_at(where: int, count: int) -> Any:
    """Return the `count` float64 at an address."""
    return carray(_float64_pointer(where), (count,))
