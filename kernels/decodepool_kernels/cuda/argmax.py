"""The best token of each row whose logits a step leaves: sources/argmax.cuh, by clusters where a GPU has them."""

from __future__ import annotations

import ctypes

from decodepool_kernels.cuda.device import Gpu, Launch
from decodepool_kernels.cuda.draws import LogitsSource
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.records import pointer

THREADS, SHARES = 256, 32
CLUSTER_THREADS, CLUSTER = 512, 8
ARGMAX_CLUSTER_CAPABILITY = 90
COUNT_BYTES, SHARE_BYTES = 4, 8


class Argmax:
    """Answers up to `max_rows` rows a step. `size_bytes` are those on the device."""

    def __init__(self, gpu: Gpu, library: KernelLibrary, source: LogitsSource, max_rows: int) -> None:
        row = (pointer(source.logits), ctypes.c_longlong(source.stride), ctypes.c_int(source.vocabulary_size))
        self._arguments = (*row, *(pointer(at) for at in (source.answers, source.step, source.last_tokens)))
        self._is_clustered, self.size_bytes = gpu.capability == ARGMAX_CLUSTER_CAPABILITY, 0
        if self._is_clustered:
            self._function = library.function("argmax_cluster", {}, CLUSTER_THREADS)
            return
        self._function = library.function("argmax", {}, THREADS)
        shares, counts = SHARE_BYTES * SHARES * max_rows, COUNT_BYTES * max_rows
        self._arguments += (pointer(gpu.allocate(shares)), pointer(gpu.allocate(counts)))
        self.size_bytes = shares + counts

    def launch(self, rows: int) -> Launch:
        """Return the launch of a step of so many rows."""
        return Launch("argmax", self._function, (CLUSTER if self._is_clustered else SHARES, rows), self._arguments)
