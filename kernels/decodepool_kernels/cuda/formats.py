"""Which of a file's types are repacked on the device, and as what."""

from __future__ import annotations

from collections.abc import Sequence

from decodepool_sizing.layouts import QUANT_LAYOUTS, gpu_matrix_bytes, vector_bytes
from decodepool_sizing.tensor_types import TensorType

from decodepool_kernels.cuda.packing import BF16_KIND, F16_KIND, MatrixKind, quant_kind

REPACKED = tuple(TensorType[name] for name in (*QUANT_LAYOUTS, "F16", "BF16"))
"""Types that sources/blocks.cuh reads."""
OF_PRODUCTS = frozenset({"BFLOAT", "GROUP_CHAINS", "PLANES", "SUMS"})
"""Defines of a kind that only products know."""


def repacked_kind(kind: TensorType) -> MatrixKind | None:
    """Return how a matrix of a file's type is kept, None where it is not repacked here."""
    if kind not in REPACKED:
        return None
    floats = {TensorType.F16: F16_KIND, TensorType.BF16: BF16_KIND}
    return floats[kind] if kind in floats else quant_kind(QUANT_LAYOUTS[kind.name])


def device_bytes(kind: TensorType, dims: Sequence[int]) -> int:
    """Return the bytes of a tensor on the device; `dims` fastest first. Vectors are f32 and whole blocks."""
    return vector_bytes(dims[0]) if len(dims) == 1 else gpu_matrix_bytes(kind.name, *dims)


def repack_defines(kind: TensorType) -> dict[str, int]:
    """Return the source's defines for a type that is repacked."""
    kept = repacked_kind(kind)
    assert kept is not None
    of_kind = {name: value for name, value in kept.defines().items() if name not in OF_PRODUCTS}
    return {**of_kind, "FORMAT": int(kind)}
