"""A GPU that is not there: it counts what is asked of its memory, and runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from decodepool_kernels.cuda.backend import CudaBackend, Settings
from decodepool_kernels.cuda.device import Function, Launch
from decodepool_kernels.cuda.formats import repacked_kind
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.pages import KvPages
from decodepool_kernels.cuda.records import DeviceMatrix, Weights
from decodepool_sizing.devices import GpuCores
from decodepool_sizing.header import Header
from decodepool_sizing.kv import pages
from decodepool_sizing.shape import read_shape
from decodepool_worker.model.registry import model_graph
from numpy.typing import NDArray


class CountingGpu:
    """Gives out addresses, notes what is `launched`. `has_clusters` is off where no group of its SMs has room for a
    cluster.
    """

    def __init__(self, cores: GpuCores, *, has_clusters: bool = True) -> None:
        self.sm_count, self.capability, self.shared_bytes = (
            cores.multiprocessors,
            90 if cores.is_hopper else 80,
            cores.shared_bytes,
        )
        self.taken_bytes, self._has_clusters = 0, has_clusters
        self.launched: list[Launch] = []

    def clusters_at_once(self, _: Function, blocks: int) -> int:
        return self.sm_count // blocks if self._has_clusters else 0

    def allocate(self, size_bytes: int) -> int:
        self.taken_bytes += size_bytes
        return self.taken_bytes

    def pinned(self, words: int) -> NDArray[np.int32]:
        return np.zeros(words, np.int32)

    def launch(self, launch: Launch) -> None:
        self.launched.append(launch)

    def mark(self) -> object: ...
    def captured(self, launches: object) -> Callable[[], None]:
        return lambda: None

    def upload(self, address: int, array: NDArray[Any], size_bytes: int | None = None) -> None: ...
    def synchronize(self) -> None: ...


def backend_on(
    gpu: CountingGpu, header: Header, context_tokens: int, max_rows: int, *, page_count: int = 0
) -> CudaBackend:
    """Return the backend of a model on a GPU that is not there."""
    shape = read_shape(header)
    matrices = {t.name: _matrix(t) for t in header.tensors if len(t.dims) == 2}
    vectors = {t.name: 1 for t in header.tensors if len(t.dims) == 1}
    heads = [(layer.kv_head_count, layer.key_length) for layer in shape.layers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelLibrary, "__init__", lambda *_: None)
        patch.setattr(KernelLibrary, "function", named_function)
        return CudaBackend(
            gpu,  # type: ignore[arg-type]
            model_graph(shape, header, None),
            Weights(matrices, vectors, 0),
            KvPages(gpu, heads, page_count),  # type: ignore[arg-type]
            vocabulary_size=shape.vocabulary_size, slots=1, max_rows=max_rows, table_width=pages(context_tokens),
            settings=Settings(),
        )  # fmt: skip


def step_bytes(header: Header, cores: GpuCores, context_tokens: int, max_rows: int) -> tuple[int, int]:
    """Return the workspace that the engine says it took for a model's step, and the bytes that it took in fact."""
    gpu = CountingGpu(cores)
    backend = backend_on(gpu, header, context_tokens, max_rows)
    return backend.workspace_bytes, gpu.taken_bytes - backend.logits_bytes


def _matrix(tensor: Any) -> DeviceMatrix:
    inputs, outputs = tensor.dims
    return DeviceMatrix(repacked_kind(tensor.type), outputs, inputs, 0, 1, 1)


def named_function(
    library: object, name: str, defines: Mapping[str, int], threads: int, shared_bytes: int = 0
) -> Function:
    """Return a kernel of which no more is known than its name and its defines."""
    return Function((name, defines), threads, shared_bytes, 1)
