"""One tensor's bytes to a packed matrix or an f32 vector. Weights that are not finite are refused: they would become
text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from decodepool_kernels.cpu.packing import PackedMatrix, pack_float, pack_quantised
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import TensorInfo
from decodepool_sizing.layouts import BLOCK_INPUTS, FLOAT_BYTES, QUANT_LAYOUTS, round_up
from numpy.typing import NDArray

from decodepool_worker.weights.formats import FORMATS

_FLOAT_BITS: dict[str, tuple[Any, int]] = {
    "F32": (np.uint32, 0x7F800000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}
"""The unsigned type of a float's bits, and its exponent field: all ones means infinity or NaN."""


def packed_matrix(tensor: TensorInfo, raw: bytes) -> PackedMatrix:
    """Pack a matrix `[outputs, inputs]` from the file's bytes; BadModelFile names the tensor."""
    inputs, outputs = tensor.dims
    name = tensor.type.name
    if name in FLOAT_BYTES:
        bits = _finite_bits(tensor, raw).reshape(outputs, inputs)
        return pack_float(name, bits.view(np.float32) if name == "F32" else bits)
    if name not in FORMATS:
        raise BadModelFile(f"tensor {tensor.name}: the engine has no kernel for type {name}")
    decoded = FORMATS[name].decode(np.frombuffer(raw, np.uint8).reshape(-1, tensor.type.block_bytes))
    for plane in (decoded.scales, decoded.minima):
        if plane is not None and not np.isfinite(plane).all():
            raise BadModelFile(f"tensor {tensor.name}: a scale is NaN or infinite")
    minima = None if decoded.minima is None else decoded.minima.reshape(outputs, -1)
    codes, scales = decoded.codes.reshape(outputs, inputs), decoded.scales.reshape(outputs, -1)
    return pack_quantised(QUANT_LAYOUTS[name], codes, scales, minima, FORMATS[name].zero)


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
