"""One matrix times rows, by the launches that a model's step would make of it: for what must be known of a GPU before
it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from decodepool_sizing.arena import place
from numpy.typing import NDArray

from decodepool_kernels.cuda.attention import attention_cut
from decodepool_kernels.cuda.backend import upload_weights
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.inputs import MAX_ROWS, StepInputs, StepLimits
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.lower import Lowering
from decodepool_kernels.cuda.packing import PackedMatrix, pack_float
from decodepool_kernels.cuda.pages import KvPages
from decodepool_kernels.cuda.programs import Programs
from decodepool_kernels.cuda.records import Columns, LogitsRows, Scratch
from decodepool_kernels.graph import Graph, Matrix
from decodepool_kernels.runs import OneRow


class ProductTrial:
    """`matrix` and the rows `x`, `[rows, inputs]`, on a GPU. What it takes is the caller's to give back."""

    def __init__(self, gpu: Gpu, matrix: PackedMatrix, x: NDArray[np.float32]) -> None:
        self._gpu, self._outputs = gpu, matrix.outputs
        graph = Graph()
        embedded = graph.embed(Matrix("x", matrix.inputs, len(x)))
        result = graph.matmul(embedded, Matrix("matrix", matrix.inputs, matrix.outputs))
        limits = StepLimits(MAX_ROWS, slots=1, pages=1, table_width=1, vocabulary_size=len(x))
        self._inputs = StepInputs(_host_words, limits, attention_cut(graph, gpu))
        self._step = gpu.allocate(self._inputs.words.nbytes)
        weights = upload_weights(gpu, {"x": pack_float("F32", x), "matrix": matrix}, {})
        pages, logits, scratch = KvPages(gpu, [], 0), LogitsRows(0, 0), Scratch(0, 0)
        room = (MAX_ROWS, Columns(MAX_ROWS))
        lowering = Lowering(weights, pages, logits, scratch, *room, self._step, 0, gpu.place, fused=True)
        records = lowering.lower(graph).records
        placement = place([(record.reads, record.writes) for record in records])
        arena = gpu.allocate(placement.size_bytes)
        self._result = arena + placement.offsets[lowering.value(result)]
        self._programs = Programs(gpu, KernelLibrary(gpu), records, placement, arena)

    def rows(self, which: Sequence[int]) -> NDArray[np.float32]:
        """Return the products of some rows, `[which, outputs]`, as one step makes them."""
        for part in self._inputs.place([OneRow((0,), 0, (row,), None) for row in which]):
            self._gpu.upload(self._step + 4 * part.start, self._inputs.words[part.start : part.stop])
        for launch in self._programs.launches(len(which)):
            self._gpu.launch(launch)
        found = np.empty((len(which), -(-self._outputs // 32) * 32), np.float32)
        self._gpu.download(found, self._result)
        self._gpu.synchronize()
        return found[:, : self._outputs]


def _host_words(count: int) -> NDArray[Any]:
    return np.zeros(count, np.int32)
