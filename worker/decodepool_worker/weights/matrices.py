"""One tensor's bytes to a packed matrix or an f32 vector. Weights that are not finite are refused: they would become
text.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
from decodepool_kernels.cpu import packing as cpu_packing
from decodepool_kernels.cpu.packing import PackedMatrix
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import TensorInfo
from decodepool_sizing.layouts import BLOCK_INPUTS, FLOAT_BYTES, QUANT_LAYOUTS, QuantLayout, round_up
from numpy.typing import NDArray

from decodepool_worker.weights.formats import FORMATS

_FLOAT_BITS: dict[str, tuple[Any, int]] = {
    "F32": (np.uint32, 0x7F800000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}
"""The unsigned type of a float's bits, and its exponent field: all ones means infinity or NaN."""


MatrixT_co = TypeVar("MatrixT_co", covariant=True)


class Packing(Protocol[MatrixT_co]):
    """How an engine keeps matrices: its module `packing`."""

    def pack_quantised(
        self,
        layout: QuantLayout,
        codes: NDArray[np.uint8],
        scales: NDArray[Any],
        minima: NDArray[Any] | None,
        zero: int,
    ) -> MatrixT_co:
        """Pack codes `[outputs, inputs]` with scales and minima `[outputs, inputs / sub_block]`."""

    def pack_float(self, type_name: str, values: NDArray[Any]) -> MatrixT_co:
        """Pack weights `[outputs, inputs]`, each as the bits of its own type."""


def packed_matrix(tensor: TensorInfo, raw: bytes) -> PackedMatrix:
    """Pack a matrix `[outputs, inputs]` for the CPU engine; BadModelFile names the tensor."""
    packing: Packing[PackedMatrix] = cpu_packing
    return matrix_packed_by(packing, tensor, raw)


def matrix_packed_by(packing: Packing[MatrixT_co], tensor: TensorInfo, raw: bytes) -> MatrixT_co:
    """Pack a matrix `[outputs, inputs]` from the file's bytes; BadModelFile names the tensor."""
    inputs, outputs = tensor.dims
    name = tensor.type.name
    if name in FLOAT_BYTES:
        bits = _finite_bits(tensor, raw).reshape(outputs, inputs)
        return packing.pack_float(name, bits.view(np.float32) if name == "F32" else bits)
    if name not in FORMATS:
        raise BadModelFile(f"tensor {tensor.name}: the engine has no kernel for type {name}")
    decoded = FORMATS[name].decode(np.frombuffer(raw, np.uint8).reshape(-1, tensor.type.block_bytes))
    for plane in (decoded.scales, decoded.minima):
        if plane is not None and not np.isfinite(plane).all():
            raise BadModelFile(f"tensor {tensor.name}: a scale is NaN or infinite")
    minima = None if decoded.minima is None else decoded.minima.reshape(outputs, -1)
    codes, scales = decoded.codes.reshape(outputs, inputs), decoded.scales.reshape(outputs, -1)
    return packing.pack_quantised(QUANT_LAYOUTS[name], codes, scales, minima, FORMATS[name].zero)


def padded_vector(tensor: TensorInfo, raw: bytes) -> NDArray[np.float32]:
    """Return a bias or norm weight as f32, filled up with zeros to a whole block."""
    name = tensor.type.name
    if name not in FLOAT_BYTES:
        raise BadModelFile(f"tensor {tensor.name}: a vector of type {name}, not F32, F16 or BF16")
    bits = _finite_bits(tensor, raw)
    padded = np.zeros(round_up(len(bits), BLOCK_INPUTS), np.float32)
    padded[: len(bits)] = _widened(name, bits)
    return padded


def _finite_bits(tensor: TensorInfo, raw: bytes) -> NDArray[Any]:
    kind, exponent = _FLOAT_BITS[tensor.type.name]
    bits = np.frombuffer(raw, kind)
    broken = np.flatnonzero(bits & kind(exponent) == exponent)
    if broken.size:
        raise BadModelFile(f"tensor {tensor.name}: element {broken[0]} is NaN or infinite")
    return bits


def _widened(name: str, bits: NDArray[Any]) -> NDArray[np.float32]:
    if name == "F32":
        return bits.view(np.float32)
    if name == "F16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
