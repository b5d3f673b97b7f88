"""A few operations, run by the real launches on the GPU, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from decodepool_kernels.arena import place
from decodepool_kernels.cuda.attention import attention_cut, attention_scratch
from decodepool_kernels.cuda.backend import upload_weights
from decodepool_kernels.cuda.device import Gpu, Launch
from decodepool_kernels.cuda.inputs import MAX_ROWS, NARROW, StepInputs, StepKind, StepLimits
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.lower import Lowering
from decodepool_kernels.cuda.packing import PackedMatrix, pack_float
from decodepool_kernels.cuda.pages import KvPages
from decodepool_kernels.cuda.programs import Programs
from decodepool_kernels.cuda.records import Columns, DeviceMatrix, LogitsRows
from decodepool_kernels.graph import Graph, Matrix, Tensor
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Build = Callable[[Graph, dict[str, Tensor]], Tensor]
"""Records operations on the inputs by name; returns the tensor to be read back."""

TABLE_WIDTH, COLUMNS = 512, Columns(MAX_ROWS)
LIMITS = StepLimits(MAX_ROWS, slots=MAX_ROWS, pages=1 << 20, table_width=TABLE_WIDTH, vocabulary_size=1 << 20)


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of one session."""

    tokens: Sequence[int]
    pages: Sequence[int] = (0,)
    position: int = 0
    slot: int | None = None
    follows: bool = False


class Probe:
    """Runs a graph whose inputs are tables of vectors: a row's token picks the same line of every table. `placed` are
    matrices that are on the device already. `graphs`: each step is one, whose launches follow each other as closely as
    they may; those that the host asks for one by one hardly meet.
    """

    def __init__(
        self,
        gpu: Gpu,
        inputs: Mapping[str, Floats],
        build: Build,
        *,
        matrices: Mapping[str, PackedMatrix] | None = None,
        placed: Mapping[str, DeviceMatrix] | None = None,
        vectors: Mapping[str, Floats] | None = None,
        pages: KvPages | None = None,
        fused: bool = True,
        graphs: bool = False,
    ) -> None:
        self.gpu, self._has_graphs = gpu, graphs
        tables = {f"input {name}": pack_float("F32", table) for name, table in inputs.items()}
        weights = upload_weights(gpu, {**tables, **(matrices or {})}, vectors or {})
        weights = replace(weights, matrices={**weights.matrices, **(placed or {})})
        graph = Graph()
        embedded = {
            name: graph.embed(Matrix(f"input {name}", table.shape[1], len(table))) for name, table in inputs.items()
        }
        self._tensor = build(graph, embedded)
        self._cut = attention_cut(graph, gpu)
        self._words = StepInputs(gpu.pinned, LIMITS, self._cut).words
        self._step = gpu.allocate(self._words.nbytes)
        scratch = attention_scratch(graph, self._cut, gpu.allocate)
        no_pages = pages or KvPages(gpu, [], 0)
        self._lowering = Lowering(
            weights, no_pages, LogitsRows(0, 0), scratch, MAX_ROWS, COLUMNS, self._step, 0, self._constant, fused
        ).lower(graph)
        self._out = self._lowering.value(self._tensor)
        records = self._lowering.records
        self._placement = place([(record.reads, record.writes) for record in records])
        self._arena = gpu.allocate(self._placement.size_bytes)
        self._programs = Programs(gpu, KernelLibrary(gpu), records, self._placement, self._arena)
        self._graphs: dict[tuple[int, StepKind], Callable[[], None]] = {}

    def _constant(self, array: NDArray[np.float64]) -> int:
        address = self.gpu.allocate(array.nbytes)
        self.gpu.upload(address, array)
        self.gpu.synchronize()
        return address

    def launches(self, rows: int, kind: StepKind = NARROW) -> list[Launch]:
        """Return the launches of a step prepared for `rows` rows."""
        return self._programs.launches(rows, kind)

    def step(self, *runs: Rows, width: int | None = None, **cut: int) -> Floats:
        """Run one step, prepared for `width` rows, with attention cut as told; return the tensor's rows."""
        inputs = StepInputs(lambda count: self._words[:count], LIMITS, replace(self._cut, **cut))
        count = sum(len(run.tokens) for run in runs)
        for part in inputs.place(runs):
            self.gpu.upload(self._step + 4 * part.start, inputs.words[part.start : part.stop])
        self._run(width or count, inputs.kind)
        stride = -(-self._tensor.width // 32) * 32
        found = np.empty((count, stride), np.float32)
        self.gpu.download(found, self._arena + self._placement.offsets[self._out])
        self.gpu.synchronize()
        return found[:, : self._tensor.width]

    def _run(self, rows: int, kind: StepKind) -> None:
        if not self._has_graphs:
            for launch in self.launches(rows, kind):
                self.gpu.launch(launch)
            return
        if (rows, kind) not in self._graphs:
            self._graphs[rows, kind] = self.gpu.captured(self.launches(rows, kind))
        self._graphs[rows, kind]()

    def rows(self, tokens: Sequence[int], width: int | None = None) -> Floats:
        """Run one step of rows that have nothing to do with positions."""
        return self.step(*(Rows((token,)) for token in tokens), width=width)


def numbers(seed: int, *shape: int, spread: float = 1.0) -> Floats:
    """Return normal f32."""
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


def relative_error(found: NDArray[Any], wanted: NDArray[np.float64]) -> float:
    """Return the distance as a part of what was wanted: the root of the sums of squares of the whole."""
    return float(np.sqrt(((found - wanted) ** 2).sum() / (wanted**2).sum()))
