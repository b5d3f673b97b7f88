"""Slices: a matrix unpacked piece by piece is the matrix, and takes no more memory than the plan allows for it."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from decodepool_kernels.cpu import packing as cpu_packing
from decodepool_kernels.cuda import packing as cuda_packing
from decodepool_sizing.devices import (
    LOADING_SCRATCH_BYTES,
    LOADING_THREADS,
    PROCESS_BASE_BYTES,
    SLICE_ELEMENT_BYTES,
    SLICE_ELEMENTS,
)
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.shape import read_shape
from decodepool_sizing.support import RUN_WEIGHT_TYPES
from decodepool_sizing.tensor_types import TensorType
from decodepool_worker.weights import loader, matrices
from decodepool_worker.weights.loader import load_weights
from decodepool_worker.weights.matrices import matrix_packed_by, packed_matrix, slice_outputs

from tests.sizing.gguf_bytes import METADATA, Tensor, gguf
from tests.weights.test_loader import loaded, opened, random_tensors
from tests.weights.test_packing import raw_of, tensor

NAMES = sorted(kind.name for kind in RUN_WEIGHT_TYPES)
INPUTS = 256


def sliced(raw: bytes, outputs: int, each: int) -> Iterator[bytes]:
    step = len(raw) // outputs * each
    return (raw[first : first + step] for first in range(0, len(raw), step))


@pytest.mark.parametrize("outputs", [64, 65, 95, 129])
@pytest.mark.parametrize("packing", [cpu_packing, cuda_packing], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", NAMES)
def test_slices_make_the_matrix(name: str, packing: matrices.Packing[matrices.Packed], outputs: int) -> None:
    raw, info = raw_of(name, outputs, INPUTS), tensor(name, INPUTS, outputs)
    whole = matrix_packed_by(packing, info, [raw])
    for each in (32, 64):
        pieces = matrix_packed_by(packing, info, sliced(raw, outputs, each))
        assert pieces.outputs == whole.outputs == outputs
        assert [plane.tobytes() for plane in pieces.planes] == [plane.tobytes() for plane in whole.planes]


@pytest.mark.parametrize("inputs", [32, 256, 8192, 1 << 14, 1 << 15])
def test_a_slice_is_whole_tiles_and_no_more_weights_than_it_may_be(inputs: int) -> None:
    outputs = slice_outputs(inputs)
    assert outputs % matrices.SLICE_OUTPUTS == 0
    assert outputs * inputs <= max(SLICE_ELEMENTS, matrices.SLICE_OUTPUTS * inputs)


@pytest.mark.parametrize("name", NAMES)
def test_unpacking_takes_no_more_than_a_slice_may(name: str) -> None:
    inputs, outputs = 2048, 1024
    raw, info = raw_of(name, outputs, inputs), tensor(name, inputs, outputs)
    tracemalloc.start()
    try:
        packed = packed_matrix(info, sliced(raw, outputs, slice_outputs(inputs)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - packed.size_bytes <= SLICE_ELEMENTS * SLICE_ELEMENT_BYTES


def big_model(name: str) -> bytes:
    """The tiny llama with an embedding of 16.8 million weights beside its own."""
    big = Tensor("blk.0.big.weight", (4096, 4096), kind=TensorType[name], data=raw_of(name, 4096, 4096))
    return gguf(METADATA, [*random_tensors(), big])


@pytest.mark.parametrize("name", ["Q6_K", "F16"])
def test_loading_a_large_tensor_stays_within_the_scratch_that_is_planned(tmp_path: Path, name: str) -> None:
    with opened(tmp_path, big_model(name)) as (reader, header):
        shape = read_shape(header)
        tracemalloc.start()
        try:
            weights = load_weights(reader, header, shape, threads=2)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak - weights.size_bytes <= 2 * SLICE_ELEMENTS * SLICE_ELEMENT_BYTES < weights.size_bytes


def test_no_more_threads_unpack_than_were_planned_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, threads: int) -> None:
            asked.append(threads)
            super().__init__(threads)

    monkeypatch.setattr(loader, "ThreadPoolExecutor", Pool)
    for threads in (1, LOADING_THREADS, 64):
        loaded(tmp_path, gguf(METADATA, random_tensors()), threads)
    assert asked == [1, LOADING_THREADS, LOADING_THREADS]
    assert LOADING_SCRATCH_BYTES == LOADING_THREADS * SLICE_ELEMENTS * SLICE_ELEMENT_BYTES <= PROCESS_BASE_BYTES // 4


def many_slices() -> list[Tensor]:
    big = np.random.default_rng(5).standard_normal((1000, 4096)).astype(np.float32)
    return [*random_tensors(), Tensor("blk.1.big.weight", (4096, 1000), data=big.tobytes())]


def test_a_fault_in_a_later_slice_is_named_by_its_own_element(tmp_path: Path) -> None:
    *own, big = many_slices()
    values = np.frombuffer(big.data or b"", np.float32).copy()
    values[3_000_001] = np.nan
    with pytest.raises(BadModelFile, match=r"^tensor blk\.1\.big\.weight: element 3000001 is NaN or infinite$"):
        loaded(tmp_path, gguf(METADATA, [*own, replace(big, data=values.tobytes())]))


def test_a_file_cut_in_a_later_slice_says_how_much_there_was(tmp_path: Path) -> None:
    with opened(tmp_path, gguf(METADATA, many_slices())) as (reader, header):
        big = header.by_name["blk.1.big.weight"]
        os.truncate(tmp_path / "model.gguf", big.offset + 12_000_000)
        with pytest.raises(BadModelFile, match=f"cut while loading: 12000000 of {big.size_bytes} bytes$"):
            load_weights(reader, header, read_shape(header), threads=2)


def test_the_digest_is_of_the_bytes_however_they_are_sliced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = gguf(METADATA, many_slices())
    usual = loaded(tmp_path, data).digest
    monkeypatch.setattr(matrices, "SLICE_ELEMENTS", 1)
    assert loaded(tmp_path, data).digest == usual
