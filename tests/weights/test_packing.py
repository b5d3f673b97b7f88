"""From a file's bytes to packed matrices and back, element by element."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from decodepool_kernels.cpu.packing import PackedMatrix
from decodepool_kernels.cuda import packing as cuda_packing
from decodepool_kernels.graph import Matrix
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import TensorInfo
from decodepool_sizing.layouts import repacked_bytes
from decodepool_sizing.support import RUN_WEIGHT_TYPES
from decodepool_sizing.tensor_types import TensorType
from decodepool_worker.weights.formats import FORMATS
from decodepool_worker.weights.matrices import Packing, matrix_packed_by, packed_matrix, padded_vector
from numpy.typing import NDArray

from tests.kernels.probe import Floats, Probe
from tests.weights.blocks import MXFP4_NAN, SCALES_AT, blocks_of

FLOATS = ("F32", "F16", "BF16")
INPUTS = 512
NOT_FINITE = {
    "F32": (0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001),
    "F16": (0x7C00, 0xFC00, 0x7E00, 0x7C01),
    "BF16": (0x7F80, 0xFF80, 0x7FC0, 0x7F81),
}


def tensor(name: str, *dims: int, called: str = "blk.3.ffn_up.weight") -> TensorInfo:
    kind = TensorType[name]
    return TensorInfo(called, dims, kind, 0, int(np.prod(dims)) // kind.block_elements * kind.block_bytes)


def float_bits(name: str, *shape: int) -> NDArray[np.uint32] | NDArray[np.uint16]:
    """Return the bits of finite numbers: every exponent but the last, either sign."""
    exponent = NOT_FINITE[name][0]
    bits = np.random.default_rng(3).integers(0, 1 << 8 * TensorType[name].block_bytes, shape)
    bits = np.where(bits & exponent == exponent, bits & ~exponent, bits)
    return bits.astype(np.uint32) if name == "F32" else bits.astype(np.uint16)


def raw_of(name: str, *dims: int) -> bytes:
    """Return a tensor's bytes as a file holds them."""
    if name in FLOATS:
        return float_bits(name, *dims).tobytes()
    return blocks_of(name, int(np.prod(dims)) // TensorType[name].block_elements).tobytes()


def dequantised(name: str, raw: bytes, outputs: int) -> Floats:
    rows = np.frombuffer(raw, np.uint8).reshape(outputs, -1)
    kind = {"F32": np.float32, "F16": np.float16}.get(name)
    if kind is not None:
        return rows.view(kind).astype(np.float32)
    return np.asarray(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name]), np.float32)


def read_back(matrix: PackedMatrix) -> Floats:
    """Return every row, by the operation that embeds tokens."""
    lines = np.zeros((matrix.outputs, 32), np.float32)
    handle = Matrix("m", matrix.inputs, matrix.outputs)
    with Probe(
        {"line": lines}, lambda g, _: {"y": g.embed(handle)}, matrices={"m": matrix}, max_rows=matrix.outputs
    ) as probe:
        return probe.rows(range(matrix.outputs))


@pytest.mark.parametrize("outputs", [1, 17, 259])
@pytest.mark.parametrize("name", sorted(kind.name for kind in RUN_WEIGHT_TYPES))
def test_every_element_comes_back(name: str, outputs: int) -> None:
    raw = raw_of(name, outputs, INPUTS)
    packed = packed_matrix(tensor(name, INPUTS, outputs), [raw])
    assert np.array_equal(read_back(packed), dequantised(name, raw, outputs))


@pytest.mark.parametrize("outputs", [1, 16, 17, 259])
@pytest.mark.parametrize("name", sorted(kind.name for kind in RUN_WEIGHT_TYPES))
def test_a_matrix_takes_the_bytes_that_were_planned(name: str, outputs: int) -> None:
    info = tensor(name, INPUTS, outputs)
    packed = packed_matrix(info, [raw_of(name, outputs, INPUTS)])
    assert packed.size_bytes == repacked_bytes(name, info.dims, info.size_bytes)


@pytest.mark.parametrize("outputs", [1, 16, 17, 259])
@pytest.mark.parametrize("name", sorted(kind.name for kind in RUN_WEIGHT_TYPES))
def test_a_matrix_on_a_gpu_takes_the_bytes_that_were_planned(name: str, outputs: int) -> None:
    info = tensor(name, INPUTS, outputs)
    pack: Packing[cuda_packing.PackedMatrix] = cuda_packing
    packed = matrix_packed_by(pack, info, [raw_of(name, outputs, INPUTS)])
    assert packed.size_bytes == repacked_bytes(name, info.dims, info.size_bytes, "cuda")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("length", [1, 31, 32, 33, 576])
def test_a_vector_becomes_f32_filled_up_with_zeros(name: str, length: int) -> None:
    info, raw = tensor(name, length), raw_of(name, length)
    found = padded_vector(info, raw)
    assert found.nbytes == repacked_bytes(name, info.dims, info.size_bytes)
    assert np.array_equal(found[:length], dequantised(name, raw, 1)[0])
    assert not found[length:].any()


@pytest.mark.parametrize(("name", "bits"), [(name, bits) for name, all_bits in NOT_FINITE.items() for bits in all_bits])
def test_a_float_that_is_not_finite_is_refused_by_name(name: str, bits: int) -> None:
    values = float_bits(name, 3, 32)
    values[2, 5] = bits
    with pytest.raises(BadModelFile, match=r"^tensor blk\.3\.ffn_up\.weight: element 69 is NaN or infinite$"):
        packed_matrix(tensor(name, 32, 3), [values.tobytes()])
    with pytest.raises(BadModelFile, match=r"^tensor output_norm\.weight: element 5 is NaN or infinite$"):
        padded_vector(tensor(name, 32, called="output_norm.weight"), values[2].tobytes())


@pytest.mark.parametrize("scale", [0x7C00, 0xFC00, 0x7E00, 0x7C01], ids=["inf", "-inf", "nan", "signalling nan"])
@pytest.mark.parametrize(("name", "start"), [(name, start) for name, starts in SCALES_AT.items() for start in starts])
def test_a_scale_that_is_not_finite_is_refused_by_name(name: str, start: int, scale: int) -> None:
    """Whatever the factors beside it: an infinite scale times a factor of 0 is refused too."""
    elements = TensorType[name].block_elements
    for fill in (None, 0):
        blocks = blocks_of(name, 6)
        if fill is not None:
            blocks[4] = fill
        blocks[4, start : start + 2] = np.array([scale], np.uint16).view(np.uint8)
        with pytest.raises(BadModelFile, match=r"^tensor blk\.3\.ffn_up\.weight: a scale is NaN or infinite$"):
            packed_matrix(tensor(name, 2 * elements, 3), [blocks.tobytes()])


def test_an_exponent_that_is_nan_is_refused_by_name() -> None:
    blocks = blocks_of("MXFP4", 6)
    blocks[4, 0] = MXFP4_NAN
    with pytest.raises(BadModelFile, match=r"^tensor blk\.3\.ffn_up\.weight: a scale is NaN or infinite$"):
        packed_matrix(tensor("MXFP4", 64, 3), [blocks.tobytes()])


@pytest.mark.parametrize("name", sorted(set(TensorType.__members__) - set(FORMATS) - set(FLOATS)))
def test_a_type_without_a_kernel_is_refused_by_tensor_and_type(name: str) -> None:
    info = tensor(name, 256, 2)
    with pytest.raises(BadModelFile, match=rf"^tensor blk\.3\.ffn_up\.weight: .*type {name}$"):
        packed_matrix(info, [bytes(info.size_bytes)])


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "I32"])
def test_a_vector_of_another_type_is_refused_by_tensor_and_type(name: str) -> None:
    info = tensor(name, 256, called="output_norm.weight")
    with pytest.raises(BadModelFile, match=rf"^tensor output_norm\.weight: a vector of type {name}, "):
        padded_vector(info, bytes(info.size_bytes))
