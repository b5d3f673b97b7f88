"""A model's step on a GPU: the lowered program as one graph of launches a width, and the memory it works in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from decodepool_sizing.layouts import round_up
from numpy.typing import NDArray

from decodepool_kernels.arena import place
from decodepool_kernels.cuda.argmax import Argmax
from decodepool_kernels.cuda.attention import attention_cut, attention_scratch
from decodepool_kernels.cuda.device import Gpu, Launch
from decodepool_kernels.cuda.draws import DeviceDraw, Draws, LogitsSource
from decodepool_kernels.cuda.inputs import (
    ANSWER_WORDS,
    MOST_CROWDED_ROWS,
    MOST_CUT_ROWS,
    MOST_SHARED_ROWS,
    NARROW,
    NUMBER,
    WANTED,
    StepInputs,
    StepKind,
    StepLimits,
    StepRun,
)
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.lower import Lowering
from decodepool_kernels.cuda.packing import PackedMatrix
from decodepool_kernels.cuda.pages import KvPages
from decodepool_kernels.cuda.programs import Programs
from decodepool_kernels.cuda.records import Columns, DeviceMatrix, LogitsRows, Record, Weights, pointer
from decodepool_kernels.cuda.turns import Turn, Turns
from decodepool_kernels.graph import Graph

WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Rows for which a step is prepared; a step of fewer runs the next, and the rows it lacks are passed over."""
COLUMN_MULTIPLE = 64
BOTH, WIDE = StepKind(wide=True), StepKind(narrow=False, wide=True)
CROWDED, SHARED = StepKind(crowded=True), StepKind(shared=True)
BRING_THREADS = 1024


@dataclass(frozen=True)
class Settings:
    """Seams between two ways with the same bits: fused launches (long runs' attention by many rows at once) or one an
    operation, graphs or launch by launch, steps begun before what the one ahead drew is read or after.
    """

    fused: bool = True
    graphs: bool = True
    chained: bool = True


def placed_matrix(place: Callable[[NDArray[Any]], int], matrix: PackedMatrix) -> DeviceMatrix:
    """Copy a packed matrix to where `place` puts it on the device."""
    address = place(matrix.data)
    return DeviceMatrix(matrix.kind, matrix.outputs, matrix.inputs, matrix.zero, address, matrix.size_bytes)


def upload_weights(
    gpu: Gpu, matrices: Mapping[str, PackedMatrix], vectors: Mapping[str, NDArray[np.float32]]
) -> Weights:
    """Copy a model's weights to the device."""

    on_device = {name: placed_matrix(gpu.place, matrix) for name, matrix in matrices.items()}
    addresses = {name: gpu.place(vector) for name, vector in vectors.items()}
    taken = sum(m.size_bytes for m in matrices.values()) + sum(vector.nbytes for vector in vectors.values())
    return Weights(on_device, addresses, taken)


class CudaBackend:
    """Runs a graph. `table_width` is the pages of the longest session. All of it is allocated and captured here."""

    def __init__(
        self, gpu: Gpu, graph: Graph, weights: Weights, pages: KvPages, *,
        vocabulary_size: int, slots: int, max_rows: int, table_width: int,
        settings: Settings = Settings(),
    ) -> None:  # fmt: skip
        self._gpu, self.pages, self._settings = gpu, pages, settings
        self.vocabulary_size = vocabulary_size
        self._logits_stride = round_up(vocabulary_size, 16)
        self._slots = slots
        self._logits = gpu.allocate(4 * self._logits_stride * slots)
        self._cut = attention_cut(graph, gpu, wide=settings.fused)
        limits = StepLimits(max_rows, slots, pages.page_count, table_width, vocabulary_size)
        self.inputs = StepInputs(lambda count: np.zeros(count, np.int32), limits, self._cut)
        self._turns = Turns(gpu, self.inputs.words.size)
        self._workspace_bytes = 0
        self._step = self._take(self.inputs.words.nbytes)
        self._last_tokens = self._take(4 * slots)
        records = self._lower(graph, weights, max_rows)
        placement = place([(record.reads, record.writes) for record in records])
        arena = self._take(placement.size_bytes)
        self._library = KernelLibrary(gpu)
        self._programs = Programs(gpu, self._library, records, placement, arena)
        row = (self._logits, self._logits_stride, vocabulary_size)
        source = LogitsSource(*row, self._turns.answers, self._step, self._last_tokens)
        bringing = (pointer(self._turns.words), ctypes.c_int(self._turns.fours), pointer(self._step))
        self._bring = Launch("bring", self._library.function("bring", {}, BRING_THREADS), (1, 1), bringing)
        self._argmax = Argmax(gpu, self._library, source, max_rows)
        self._draws = Draws(gpu, self._library, source)
        self._workspace_bytes += self._argmax.size_bytes
        self._programs.take_slices(_widths(max_rows))
        self._steps = {
            (width, kind): self._prepared(width, kind) for width in _widths(max_rows) for kind in self._kinds(width)
        }
        self._workspace_bytes += self._programs.allocated_bytes
        gpu.synchronize()

    def _take(self, size_bytes: int) -> int:
        self._workspace_bytes += size_bytes
        return self._gpu.allocate(size_bytes)

    def _lower(self, graph: Graph, weights: Weights, max_rows: int) -> list[Record]:
        scratch = attention_scratch(graph, self._cut, self._take)
        rows = LogitsRows(self._logits, self._logits_stride)
        columns = Columns(round_up(max_rows, COLUMN_MULTIPLE))
        places = (self._step, self._last_tokens, self._constant)
        lowering = Lowering(weights, self.pages, rows, scratch, max_rows, columns, *places, self._settings.fused)
        return lowering.lower(graph).records

    def _constant(self, array: NDArray[np.float64]) -> int:
        address = self._take(array.nbytes)
        self._gpu.upload(address, array)
        self._gpu.synchronize()
        return address

    def _kinds(self, width: int) -> list[StepKind]:
        crowded = [CROWDED] if width <= MOST_CROWDED_ROWS else []
        shared = [SHARED] if width <= MOST_SHARED_ROWS and self._cut.shared_at_once else []
        wide = [BOTH, WIDE] if width > MOST_CUT_ROWS and self._cut.wide_at_once else []
        return [NARROW, *crowded, *shared, *wide]

    def _prepared(self, width: int, kind: StepKind) -> Callable[[], None]:
        launches = self._launches(width, kind)
        if self._settings.graphs:
            return self._gpu.captured(launches)

        def one_by_one() -> None:
            for launch in launches:
                self._gpu.launch(launch)

        return one_by_one

    def launches(self, rows: int) -> list[Launch]:
        """Return every launch of a step of `rows` rows, for a profile."""
        return self._launches(*self._width(rows))

    def _launches(self, width: int, kind: StepKind) -> list[Launch]:
        return [self._bring, *self._programs.launches(width, kind), self._argmax.launch(width)]

    def replay(self, rows: int) -> None:
        """Run the step last placed once more, with what is prepared for `rows` rows, for a clock."""
        self._steps[self._width(rows)]()

    def _width(self, rows: int) -> tuple[int, StepKind]:
        """Return the narrowest step that is prepared for so many rows, and for what the step last placed needs."""
        width, kind = min(width for width, _ in self._steps if width >= rows), self.inputs.kind
        plain = replace(kind, crowded=False, shared=False)
        return width, kind if (width, kind) in self._steps else plain

    @property
    def workspace_bytes(self) -> int:
        """Bytes of intermediate results, step inputs and attention's states."""
        return self._workspace_bytes

    @property
    def logits_bytes(self) -> int:
        """Bytes of the resident logits rows."""
        return 4 * self._logits_stride * self._slots

    def run(self, runs: Sequence[StepRun]) -> NDArray[np.int32]:
        """Evaluate every row of one step, without the GIL; return ANSWER_WORDS of each run with a slot, in order: best
        id, bits of its f32 logit, token drawn; a view until the step after the next.
        """
        return self.begin(runs)()

    def begin(
        self, runs: Sequence[StepRun], draws: Sequence[DeviceDraw | None] = ()
    ) -> Callable[[], NDArray[np.int32]]:
        """Start a step, or have it start when the one under way ends, with `draws`, if any, one for each run with a
        slot; return what waits for its end, without the GIL, and gives what `run` gives. At most STEPS_UNDER_WAY steps,
        waited for in order. RuntimeError for one more, ValueError for runs that are none, OverflowError for draws of
        numbers that the device has no room for; nothing has changed then.
        """
        number = self._turns.next_number()
        self._gpu.enter()
        rows = sum(len(run.tokens) for run in runs)
        if rows == 0:
            return lambda: np.empty((0, ANSWER_WORDS), np.int32)
        is_drawn = any(draws)
        if is_drawn:
            self._draws.ask(number, draws)
        parts = self.inputs.place(runs)  # known to be on the device from here on: nothing may keep it from there
        turn, wanted = self._turns.take(number), int(self.inputs.words[WANTED])
        self.inputs.words[NUMBER] = number
        turn.write(self.inputs.words, parts)
        self.replay(rows)
        if is_drawn:
            self._draws.draw(wanted)
        turn.end.set()
        return lambda: _awaited(turn, wanted)

    def logits(self, slot: int) -> NDArray[np.float32]:
        """Return a copy of a slot's resident logits, `[vocabulary]`."""
        self._gpu.enter()
        row = np.empty(self.vocabulary_size, np.float32)
        self._gpu.download(row, self._logits + 4 * self._logits_stride * slot)
        self._gpu.synchronize()
        return row

    def copy_logits(self, source: int, target: int) -> None:
        """Copy one resident logits row."""
        self._gpu.enter()
        row_bytes = 4 * self._logits_stride
        self._gpu.copy(self._logits + row_bytes * target, self._logits + row_bytes * source, row_bytes)

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page of every layer."""
        self._gpu.enter()
        self.pages.copy(source, target)

    def close(self) -> None:
        """Give the device back."""
        self._gpu.close()


def _widths(max_rows: int) -> list[int]:
    return [*(width for width in WIDTHS if width < max_rows), max_rows]


def _awaited(turn: Turn, wanted: int) -> NDArray[np.int32]:
    """Wait for a step's end; return its answers."""
    turn.end.wait()
    turn.is_taken = False
    return turn.answers[:wanted]
