"""Loading: every tensor of the trunk read, checked, packed, and its digest taken on the way, slice by slice.

Bytes are read with pread and not through a mapping: a file cut short under a mapping kills the process by a signal,
here it is one line.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from decodepool_kernels.cpu.packing import PackedMatrix
from decodepool_sizing.devices import LOADING_THREADS, SLICE_ELEMENTS
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import Header, TensorInfo
from decodepool_sizing.loaded_tensors import loaded_tensors
from decodepool_sizing.readers import FileReader
from decodepool_sizing.shape import ModelShape
from numpy.typing import NDArray

from decodepool_worker.weights.matrices import packed_matrix, padded_vector, slice_outputs

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and in all: from any thread, one call at a time, ever more."""


class Sized(Protocol):
    """A loaded matrix, wherever it is."""

    @property
    def size_bytes(self) -> int:
        """Bytes allocated."""


LoadedT = TypeVar("LoadedT", bound=Sized)


@dataclass(frozen=True)
class PackedWeights(Generic[LoadedT]):
    """Packed matrices and f32 vectors by tensor name; the digest of all bytes that were loaded; the bytes they take in
    memory.
    """

    matrices: dict[str, LoadedT]
    vectors: dict[str, NDArray[np.float32]]
    digest: str

    @property
    def size_bytes(self) -> int:
        """Bytes allocated."""
        return sum(m.size_bytes for m in self.matrices.values()) + sum(v.nbytes for v in self.vectors.values())


LoadedWeights = PackedWeights[PackedMatrix]
"""Weights as the CPU engine keeps them."""


def load_weights(
    reader: FileReader, header: Header, shape: ModelShape, *, threads: int, progress: Progress | None = None
) -> LoadedWeights:
    """Load every tensor of the trunk for the CPU engine; see `load_packed`."""
    return load_packed(reader, header, shape, packed_matrix, threads=threads, progress=progress)


def load_packed(
    reader: FileReader,
    header: Header,
    shape: ModelShape,
    pack: Callable[[TensorInfo, Iterable[bytes]], LoadedT],
    *,
    threads: int,
    progress: Progress | None = None,
    slice_elements: int = SLICE_ELEMENTS,
) -> PackedWeights[LoadedT]:
    """Load every tensor of the trunk with up to `threads` threads, in slices of about so many weights. BadModelFile
    names the first tensor at fault.
    """
    tensors = loaded_tensors(shape, header.tensors)
    tracker = _Tracker(sum(tensor.size_bytes for tensor in tensors), progress)

    def load(tensor: TensorInfo) -> tuple[LoadedT | NDArray[np.float32], bytes]:
        digest = hashlib.sha256()
        slices = _counted(tensor_slices(reader, tensor, slice_elements), digest.update, tracker.add)
        loaded = padded_vector(tensor, b"".join(slices)) if len(tensor.dims) == 1 else pack(tensor, slices)
        return loaded, digest.digest()

    with ThreadPoolExecutor(min(threads, LOADING_THREADS)) as pool:
        results = list(pool.map(load, tensors))
    loaded = {tensor.name: part for tensor, (part, _) in zip(tensors, results, strict=True)}
    return PackedWeights(
        {name: part for name, part in loaded.items() if not isinstance(part, np.ndarray)},
        {name: part for name, part in loaded.items() if isinstance(part, np.ndarray)},
        _digest(header, tensors, [digest for _, digest in results]),
    )


def tensor_slices(reader: FileReader, tensor: TensorInfo, elements: int = SLICE_ELEMENTS) -> Iterator[bytes]:
    """Read a tensor slice by slice: a matrix in whole outputs, a vector at once. BadModelFile where the file ends."""
    step = tensor.size_bytes
    if len(tensor.dims) > 1:
        step = min(step, tensor.size_bytes // tensor.dims[1] * slice_outputs(tensor.dims[0], elements))
    for at in range(0, tensor.size_bytes, step):
        wanted = min(step, tensor.size_bytes - at)
        raw = reader(tensor.offset + at, wanted)
        if len(raw) != wanted:
            raise BadModelFile(
                f"tensor {tensor.name}: the file was cut while loading: {at + len(raw)} of {tensor.size_bytes} bytes"
            )
        yield raw


def _counted(slices: Iterable[bytes], digest: Callable[[bytes], None], done: Callable[[int], None]) -> Iterator[bytes]:
    for raw in slices:
        digest(raw)
        done(len(raw))
        yield raw


class _Tracker:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._progress is not None:
                self._progress(self._done, self._total)


def _digest(header: Header, tensors: list[TensorInfo], digests: list[bytes]) -> str:
    """Digest what decides a stream's bits: the metadata and every loaded tensor."""
    total = hashlib.sha256()
    for key, value in sorted(header.metadata.items()):
        total.update(f"{key}={value!r};".encode())
    for tensor, digest in zip(tensors, digests, strict=True):
        total.update(f"{tensor.name} {tensor.dims} {tensor.type.name} ".encode() + digest)
    return total.hexdigest()
