"""One tensor's bytes to a packed matrix or an f32 vector. Weights that are not finite are refused: they would become
text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import numpy as np
from decodepool_kernels.cpu import packing as cpu_packing
from decodepool_kernels.cpu.packing import PackedMatrix
from decodepool_kernels.scales import Scales, is_finite
from decodepool_sizing.devices import SLICE_ELEMENTS
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


SLICE_OUTPUTS = 32
"""Slices are multiples of so many outputs: whole tiles in every engine's layout."""


class Packed(Protocol):
    """A packed matrix, whatever engine it is for."""

    @property
    def outputs(self) -> int:
        """Rows of the matrix."""

    @property
    def size_bytes(self) -> int:
        """Bytes allocated."""

    @property
    def planes(self) -> tuple[NDArray[np.uint8], ...]:
        """The bytes: those of SLICE_OUTPUTS outputs follow on those before them, plane by plane."""

    def emptied(self: MatrixT, outputs: int) -> MatrixT:
        """Return a matrix of as many outputs, kept as this one is, whose planes are yet to be filled."""


MatrixT = TypeVar("MatrixT", bound=Packed)
MatrixT_co = TypeVar("MatrixT_co", bound=Packed, covariant=True)


class Packing(Protocol[MatrixT_co]):
    """How an engine keeps matrices: its module `packing`."""

    def pack_quantised(
        self,
        layout: QuantLayout,
        codes: NDArray[np.uint8],
        scales: Scales,
        minima: Scales | None,
        zero: int,
    ) -> MatrixT_co:
        """Pack codes `[outputs, inputs]` with scales and minima `[outputs, inputs / sub_block]`."""

    def pack_float(self, type_name: str, values: NDArray[Any]) -> MatrixT_co:
        """Pack weights `[outputs, inputs]`, each as the bits of its own type."""


def slice_outputs(inputs: int, elements: int = SLICE_ELEMENTS) -> int:
    """Return the outputs of one slice of a matrix: about `elements` weights."""
    return max(1, elements // (inputs * SLICE_OUTPUTS)) * SLICE_OUTPUTS


def packed_matrix(tensor: TensorInfo, slices: Iterable[bytes]) -> PackedMatrix:
    """Pack a matrix `[outputs, inputs]` for the CPU engine; see `matrix_packed_by`."""
    packing: Packing[PackedMatrix] = cpu_packing
    return matrix_packed_by(packing, tensor, slices)


def matrix_packed_by(packing: Packing[MatrixT], tensor: TensorInfo, slices: Iterable[bytes]) -> MatrixT:
    """Pack a matrix `[outputs, inputs]` from the file's bytes, `slice_outputs` outputs a slice (fewer in the last), one
    after the other: no more than one is unpacked at a time. BadModelFile names the tensor.
    """
    whole: MatrixT | None = None
    filled, places = 0, []
    for raw in slices:
        part = _packed_slice(packing, tensor, filled, raw)
        if part.outputs == tensor.dims[1]:
            return part
        if whole is None:
            whole = part.emptied(tensor.dims[1])
            places = [0] * len(whole.planes)
        for index, (plane, bytes_of_part) in enumerate(zip(whole.planes, part.planes, strict=True)):
            plane[places[index] : places[index] + bytes_of_part.size] = bytes_of_part
            places[index] += bytes_of_part.size
        filled += part.outputs
    assert whole is not None
    return whole


def _packed_slice(packing: Packing[MatrixT], tensor: TensorInfo, first_output: int, raw: bytes) -> MatrixT:
    inputs, name = tensor.dims[0], tensor.type.name
    if name in FLOAT_BYTES:
        bits = _finite_bits(tensor, raw, first_output * inputs).reshape(-1, inputs)
        return packing.pack_float(name, bits.view(np.float32) if name == "F32" else bits)
    if name not in FORMATS:
        raise BadModelFile(f"tensor {tensor.name}: the engine has no kernel for type {name}")
    decoded = FORMATS[name].decode(np.frombuffer(raw, np.uint8).reshape(-1, tensor.type.block_bytes))
    for plane in (decoded.scales, decoded.minima):
        if plane is not None and not is_finite(plane):
            raise BadModelFile(f"tensor {tensor.name}: a scale is NaN or infinite")
    codes = decoded.codes.reshape(-1, inputs)
    minima = None if decoded.minima is None else decoded.minima.reshape(len(codes), -1)
    scales = decoded.scales.reshape(len(codes), -1)
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


def _finite_bits(tensor: TensorInfo, raw: bytes, first_element: int = 0) -> NDArray[Any]:
    kind, exponent = _FLOAT_BITS[tensor.type.name]
    bits = np.frombuffer(raw, kind)
    broken = np.flatnonzero(bits & kind(exponent) == exponent)
    if broken.size:
        raise BadModelFile(f"tensor {tensor.name}: element {first_element + broken[0]} is NaN or infinite")
    return bits


def _widened(name: str, bits: NDArray[Any]) -> NDArray[np.float32]:
    if name == "F32":
        return bits.view(np.float32)
    if name == "F16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
