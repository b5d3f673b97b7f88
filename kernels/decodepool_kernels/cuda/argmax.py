"""The best token of each row whose logits a step leaves: sources/argmax.cuh, by clusters where a GPU has them."""

from __future__ import annotations

import ctypes

from decodepool_kernels.cuda.device import Function, Gpu, Launch
from decodepool_kernels.cuda.draws import LogitsSource
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.records import pointer

THREADS, SHARES = 256, 32
CLUSTER_THREADS, CLUSTERS, BLOCKS_AT_ONCE = 512, (8, 4), 2
"""Blocks of a row: the most whose clusters all run at once, so many blocks an SM, or the fewest."""
ARGMAX_CLUSTER_CAPABILITY = 90
COUNT_BYTES, SHARE_BYTES = 4, 8


class Argmax:
    """Answers up to `max_rows` rows a step. `size_bytes` are those on the device."""

    def __init__(self, gpu: Gpu, library: KernelLibrary, source: LogitsSource, max_rows: int) -> None:
        row = (pointer(source.logits), ctypes.c_longlong(source.stride), ctypes.c_int(source.vocabulary_size))
        self._arguments = (*row, *(pointer(at) for at in (source.answers, source.step, source.last_tokens)))
        self._gpu, self._library, self.size_bytes = gpu, library, 0
        self._has_clusters = self._finds_room(CLUSTERS[0])
        if self._has_clusters:
            return
        shares, counts = SHARE_BYTES * SHARES * max_rows, COUNT_BYTES * max_rows
        self._arguments += (pointer(gpu.allocate(shares)), pointer(gpu.allocate(counts)))
        self.size_bytes = shares + counts

    def _finds_room(self, blocks: int) -> bool:
        """Whether the device has clusters of so many blocks, and a group of SMs with room for one."""
        if self._gpu.capability != ARGMAX_CLUSTER_CAPABILITY:
            return False
        return self._gpu.clusters_at_once(self._cluster_function(blocks), blocks) > 0

    def _cluster_function(self, blocks: int) -> Function:
        return self._library.function("argmax_cluster", {"BLOCKS": blocks}, CLUSTER_THREADS)

    def launch(self, rows: int) -> Launch:
        """Return the launch of a step of so many rows."""
        if not self._has_clusters:
            return Launch("argmax", self._library.function("argmax", {}, THREADS), (SHARES, rows), self._arguments)
        at_once = BLOCKS_AT_ONCE * self._gpu.sm_count
        blocks = next((blocks for blocks in CLUSTERS if blocks * rows <= at_once), CLUSTERS[-1])
        return Launch("argmax", self._cluster_function(blocks), (blocks, rows), self._arguments)
