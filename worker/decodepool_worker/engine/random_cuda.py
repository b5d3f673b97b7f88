"""A model of a named shape on a GPU, its weights made there at random: to be measured where there is no file."""

from __future__ import annotations

import numpy as np
from decodepool_kernels.cuda import packing
from decodepool_kernels.cuda.device import Gpu, Region
from decodepool_kernels.cuda.packing import PackedMatrix
from decodepool_kernels.cuda.records import DeviceMatrix, Weights
from decodepool_sizing.header import Header, TensorInfo
from decodepool_sizing.shape import read_shape

from decodepool_worker.engine.open import Loaded, ModelFile, Wanted
from decodepool_worker.engine.open_cuda import opened_around, planned_on, weights_region
from decodepool_worker.model.named_shapes import named_header
from decodepool_worker.weights.matrices import Packing, matrix_packed_by
from decodepool_worker.weights.random_blocks import random_bytes

SAMPLE_OUTPUTS = 1024
"""Rows of random weights that are made, and then repeated on the device: far more than a cache holds."""

Sample = tuple[int, PackedMatrix]
"""Where a sample lies on the device, and what was put there."""


def open_shape(name: str, weights: str, wanted: Wanted) -> Loaded:
    """Open a shape such as llama-3-8b with weights such as Q8_0. BadDemand for names that are not known; CannotFit."""
    header = named_header(name, weights)
    model = ModelFile(header, read_shape(header))
    gpu = Gpu()
    try:
        plan = planned_on(gpu, model, wanted)
        placed = random_weights(gpu, header)
        return opened_around(gpu, model, placed, plan, wanted, digest=f"random {name} {weights}")
    except BaseException:
        gpu.close()
        raise


def random_weights(gpu: Gpu, header: Header) -> Weights:
    """Make every tensor on the device: matrices of each type and width from one sample, norms of ones."""
    region = weights_region(gpu, header.tensors)
    samples: dict[tuple[object, int], Sample] = {}
    matrices: dict[str, DeviceMatrix] = {}
    vectors: dict[str, int] = {}
    norms: list[int] = []
    for tensor in header.tensors:
        if len(tensor.dims) == 1:
            vectors[tensor.name] = region.place(np.ones(tensor.dims[0], np.float32))
            norms.append(tensor.dims[0])
            continue
        key = (tensor.type, tensor.dims[0])
        if key not in samples:
            sample = _sample(tensor)
            samples[key] = (gpu.place(sample.data), sample)
        matrices[tensor.name] = _repeated(gpu, region, tensor, *samples[key])
    for address, _ in samples.values():
        gpu.release(address)
    taken = sum(matrix.size_bytes for matrix in matrices.values()) + 4 * sum(norms)
    return Weights(matrices, vectors, taken)


def _sample(tensor: TensorInfo) -> PackedMatrix:
    pack: Packing[PackedMatrix] = packing
    inputs, outputs = tensor.dims[0], min(SAMPLE_OUTPUTS, tensor.dims[1])
    cut = TensorInfo(tensor.name, (inputs, outputs), tensor.type, 0, tensor.size_bytes // tensor.dims[1] * outputs)
    return matrix_packed_by(pack, cut, [random_bytes(tensor.type, inputs, outputs, np.random.default_rng(inputs))])


def _repeated(gpu: Gpu, region: Region, tensor: TensorInfo, source: int, sample: PackedMatrix) -> DeviceMatrix:
    inputs, outputs = tensor.dims
    size = sample.emptied(outputs).size_bytes
    address = region.take(size)
    for at in range(0, size, sample.size_bytes):
        gpu.copy(address + at, source, min(sample.size_bytes, size - at))
    return DeviceMatrix(sample.kind, outputs, inputs, sample.zero, address, size)
