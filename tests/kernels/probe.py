"""A few operations, run by the real program with its threads, barriers and shared memory, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
from decodepool_kernels.arena import Buffer, place
from decodepool_kernels.cpu.backend import CpuBackend
from decodepool_kernels.cpu.lower import LogitsRows, Lowering, Weights
from decodepool_kernels.cpu.packing import PackedMatrix, pack_float
from decodepool_kernels.cpu.pages import KvPages
from decodepool_kernels.graph import Graph, Matrix, Tensor, Vector
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Build = Callable[[Graph, dict[str, Tensor]], Mapping[str, Tensor]]
"""Records operations on the inputs by name; returns the tensors to be read back."""

WIDTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 64, 256)
"""Rows of a step: around 16, where a page's unit of rows ends, and of either parity."""


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of one session."""

    tokens: Sequence[int]
    pages: Sequence[int] = (0,)
    position: int = 0
    slot: int | None = None


class Probe:
    """Runs a graph whose inputs are tables of vectors: a row's token picks the same line of every table."""

    def __init__(
        self,
        inputs: Mapping[str, Floats],
        build: Build,
        *,
        matrices: Mapping[str, PackedMatrix] | None = None,
        vectors: Mapping[str, Floats] | None = None,
        pages: KvPages | None = None,
        vocabulary: int | None = None,
        slots: int = 1,
        max_rows: int = 256,
        table_width: int = 17,
        threads: int = 1,
    ) -> None:
        tables = {f"input {name}": pack_float("F32", wide(table)) for name, table in inputs.items()}
        weights = Weights({**tables, **(matrices or {})}, {name: padded(v) for name, v in (vectors or {}).items()})
        graph = Graph()
        embedded = {
            name: graph.embed(Matrix(f"input {name}", table.shape[1], len(table))) for name, table in inputs.items()
        }
        self.tensors = dict(build(graph, embedded))
        self.pages = pages or KvPages("f32", [], table_width)
        lines = max(len(table) for table in inputs.values())
        self.backend = CpuBackend(
            graph,
            weights,
            self.pages,
            vocabulary_size=vocabulary or lines,
            slots=slots,
            max_rows=max_rows,
            table_width=table_width,
            threads=threads,
        )
        self._lowering = Lowering(weights, self.pages, LogitsRows(0, 0), table_width, max_rows).lower(graph)
        self._placement = place([(record.reads, record.writes) for record in self._lowering.records])

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.backend.close()

    def step(self, *runs: Rows) -> dict[str, Floats]:
        """Run one step; return every named tensor's rows `[rows, width]`."""
        self.backend.run(runs)
        count = sum(len(run.tokens) for run in runs)
        return {name: self._read(tensor, count) for name, tensor in self.tensors.items()}

    def rows(self, tokens: Sequence[int]) -> Floats:
        """Run one step of rows that have nothing to do with positions; return the one named tensor's rows."""
        (result,) = self.step(*(Rows((token,)) for token in tokens)).values()
        return result

    def quantised(self, name: str, rows: int) -> NDArray[np.uint8]:
        """Return a tensor's activation records `[block, row, 80]` as the last step left them."""
        buffer = self._lowering._quantised[self._buffer(self.tensors[name])]
        blocks = self.tensors[name].width // 32
        return self._bytes(buffer, blocks * rows * 80).reshape(blocks, rows, 80)

    def _buffer(self, tensor: Tensor) -> Buffer:
        return self._lowering._tensors[tensor]

    def _read(self, tensor: Tensor, rows: int) -> Floats:
        stride = -(-tensor.width // 32) * 32
        values = self._bytes(self._buffer(tensor), rows * stride * 4).view(np.float32)
        return values.reshape(rows, stride)[:, : tensor.width]

    def _bytes(self, buffer: Buffer, count: int) -> NDArray[np.uint8]:
        start = self._placement.offsets[buffer]
        return self.backend._program.arena[start : start + count].copy()


def wide(table: Floats) -> Floats:
    """Return a table with its lines filled up to a whole block."""
    lines, width = table.shape
    out = np.zeros((lines, -(-width // 32) * 32), np.float32)
    out[:, :width] = table
    return out


def padded(vector: Floats) -> Floats:
    """Return a vector filled up to a whole block, as loaded ones are."""
    return wide(vector[None, :]).ravel()


def vector(name: str, values: Floats) -> Vector:
    """Return a graph's handle of a vector."""
    return Vector(name, len(values))


def numbers(seed: int, *shape: int, spread: float = 1.0) -> Floats:
    """Return normal f32."""
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


def assert_same_bits(found: Floats, wanted: Floats) -> None:
    """Assert that every bit agrees, and say where the first that does not is."""
    assert found.shape == wanted.shape
    differ = np.argwhere(np.ascontiguousarray(found).view(np.uint32) != np.ascontiguousarray(wanted).view(np.uint32))
    if len(differ):
        first = tuple(differ[0])
        raise AssertionError(
            f"{len(differ)} of {found.size} differ, first at {first}: {found[first]!r} != {wanted[first]!r}"
        )
