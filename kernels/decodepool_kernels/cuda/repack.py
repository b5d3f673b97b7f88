"""Matrices repacked on the device: the file's blocks go up as they are, and a kernel makes the records of `packing`."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
from decodepool_sizing.layouts import BLOCK_INPUTS, TILE_OUTPUTS
from decodepool_sizing.tensor_types import TensorType
from numpy.typing import NDArray

from decodepool_kernels.cuda.device import Gpu, Launch, Region
from decodepool_kernels.cuda.formats import device_bytes, repack_defines, repacked_kind
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.records import DeviceMatrix, pointer

THREADS, RECORDS = 256, 8
"""Of a block: a warp a record."""
PAIR_OUTPUTS = 2 * TILE_OUTPUTS
"""Slices begin at a multiple of these: tiles lie in pairs."""


class Repacking:
    """Fills matrices in a region, slice by slice, from any thread. `tensors` is how many matrices there may be."""

    def __init__(self, gpu: Gpu, library: KernelLibrary, region: Region, tensors: int) -> None:
        self._gpu, self._library, self._region, self._tensors = gpu, library, region, tensors
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._faults = gpu.allocate(4 * tensors)
        self._staging, self._staging_bytes = 0, 0

    def matrix(self, name: str, kind: TensorType, outputs: int, inputs: int, zero: int) -> Filling:
        """Return a matrix to be filled, its memory taken."""
        kept, size = repacked_kind(kind), device_bytes(kind, (inputs, outputs))
        with self._lock:
            matrix = DeviceMatrix(kept, outputs, inputs, zero, self._region.take(size), size)
            self._names.append(name)
            return Filling(self, matrix, kind, len(self._names) - 1)

    def place(self, array: NDArray[Any]) -> int:
        """Copy what is packed already into the region, from any thread."""
        with self._lock:
            self._gpu.enter()
            return self._region.place(array)

    def put(self, filling: Filling, first_output: int, raw: bytes) -> None:
        """Repack the blocks of consecutive outputs from `first_output` on, a multiple of PAIR_OUTPUTS."""
        matrix, kept = filling.matrix, filling.matrix.kind
        assert kept is not None
        row_bytes = matrix.inputs // filling.kind.block_elements * filling.kind.block_bytes
        outputs, blocks = len(raw) // row_bytes, matrix.inputs // BLOCK_INPUTS
        tiles = -(-outputs // PAIR_OUTPUTS) * 2
        target = matrix.address + first_output // TILE_OUTPUTS * kept.tile_bytes(matrix.inputs)
        with self._lock:
            self._gpu.enter()
            self._upload(raw)
            function = self._library.function("repack", repack_defines(filling.kind), THREADS)
            sizes = (outputs, matrix.inputs, tiles, kept.record_bytes, kept.head_bytes)
            places = (pointer(target), pointer(self._faults + 4 * filling.index))
            arguments = (pointer(self._staging), *map(ctypes.c_int, sizes), *places)
            grid = (-(-tiles * blocks // RECORDS), 1)
            self._gpu.launch(Launch("repack", function, grid, arguments))

    def _upload(self, raw: bytes) -> None:
        """Bring the blocks, in stream order: behind the kernel that reads those before."""
        if len(raw) > self._staging_bytes:
            if self._staging:
                self._gpu.release(self._staging)
            self._staging, self._staging_bytes = self._gpu.allocate(len(raw)), len(raw)
        self._gpu.upload(self._staging, np.frombuffer(raw, np.uint8))

    def finish(self) -> list[str]:
        """Wait, give back what only loading needs, and return the matrices that have a scale or a weight that is not
        finite.
        """
        self._gpu.enter()
        faults: NDArray[np.int32] = np.empty(self._tensors, np.int32)
        self._gpu.download(faults, self._faults)
        for address in (self._faults, self._staging):
            if address:
                self._gpu.release(address)
        return [name for name, fault in zip(self._names, faults, strict=False) if fault]


class Filling:
    """A matrix on its way to the device."""

    def __init__(self, repacking: Repacking, matrix: DeviceMatrix, kind: TensorType, index: int) -> None:
        self.matrix, self.kind, self.index = matrix, kind, index
        self._repacking, self._filled = repacking, 0

    def add(self, raw: bytes) -> None:
        """Put the next outputs; all but the last slice are of whole pairs of tiles."""
        self._repacking.put(self, self._filled, raw)
        row_bytes = self.matrix.inputs // self.kind.block_elements * self.kind.block_bytes
        self._filled += len(raw) // row_bytes
