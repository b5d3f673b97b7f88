"""A model's step on this machine's cores: the lowered program, the memory it works in, and the threads that run it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from decodepool_sizing.layouts import TILE_OUTPUTS, round_up
from numpy.typing import NDArray

from decodepool_kernels.cpu.attention import UNIT_ROWS, unit_scratch_floats
from decodepool_kernels.cpu.buffers import CACHE_LINE_BYTES, address, aligned_bytes
from decodepool_kernels.cpu.compiling import compile_apart
from decodepool_kernels.cpu.kv import PAGE_TOKENS
from decodepool_kernels.cpu.lower import LogitsRows, LoweredProgram, Lowering, Weights
from decodepool_kernels.cpu.matmul import TILE_BYTES
from decodepool_kernels.cpu.pages import KvPages
from decodepool_kernels.cpu.records import ROWS, STOP, UNITS, WANTED
from decodepool_kernels.cpu.team import SHARED_BYTES
from decodepool_kernels.graph import Attention, Graph
from decodepool_kernels.runs import OneRow, RowRun


@dataclass(frozen=True)
class StepInputs:
    """What a step reads: row by row tokens, positions and page-table numbers; the tables; attention units; rows with
    wanted logits.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    row_tables: NDArray[np.int32]
    tables: NDArray[np.int32]
    unit_rows: NDArray[np.int32]
    unit_counts: NDArray[np.int32]
    wanted_rows: NDArray[np.int32]
    wanted_slots: NDArray[np.int32]

    @classmethod
    def allocate(cls, max_rows: int, table_width: int) -> StepInputs:
        """Return inputs with room for `max_rows` rows, each with a table of its own."""
        rows = (max_rows, max_rows, max_rows, max_rows * table_width)
        picked = (max_rows, max_rows, max_rows, max_rows)
        return cls(*(np.zeros(count, np.int32) for count in rows + picked))

    def arrays(self) -> tuple[NDArray[np.int32], ...]:
        """Return the arrays in the order in which the compiled program takes them."""
        return (
            self.tokens, self.positions, self.row_tables, self.tables,
            self.unit_rows, self.unit_counts, self.wanted_rows, self.wanted_slots,
        )  # fmt: skip


class CpuBackend:
    """Runs a graph. `table_width` is the pages of the longest session; every page, logits row and buffer is allocated
    here, once.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        pages: KvPages,
        *,
        vocabulary_size: int,
        slots: int,
        max_rows: int,
        table_width: int,
        threads: int,
    ) -> None:
        self.max_rows = max_rows
        self.table_width = table_width
        self.slots = slots
        self.vocabulary_size = vocabulary_size
        self._weights = weights
        self.pages = pages
        self._logits_stride = round_up(vocabulary_size, TILE_OUTPUTS) * 4
        self._logits = aligned_bytes(self._logits_stride * slots)
        rows = LogitsRows(address(self._logits), self._logits_stride)
        self._program: LoweredProgram = Lowering(weights, pages, rows, table_width, max_rows).lower(graph).finish()
        self._inputs = StepInputs.allocate(max_rows, table_width)
        self._counts = np.zeros(8, np.int64)
        self._team = Team(self._program, self._counts, self._inputs, scratch_bytes(graph, max_rows), threads)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of intermediate results and of the threads' scratch."""
        return self._program.arena.size + self._team.scratch.size

    @property
    def logits_bytes(self) -> int:
        """Bytes of the resident logits rows."""
        return self._logits.size

    def logits(self, slot: int) -> NDArray[np.float32]:
        """Return a slot's resident logits, `[vocabulary]`; a view."""
        row = self._logits[slot * self._logits_stride : (slot + 1) * self._logits_stride]
        return row.view(np.float32)[: self.vocabulary_size]

    def make_ready(self) -> None:
        """Load the compiled code by a step of one row, and make every reserved byte resident."""
        self.run([OneRow(pages=[0], position=0, tokens=[0], slot=0)])
        self.pages.touch()
        self._logits.fill(0)
        self._inputs.tables.fill(0)
        self._program.arena.fill(0)
        self._team.scratch.fill(0)

    def run(self, runs: Sequence[RowRun]) -> None:
        """Evaluate every row of one step; the GIL is released throughout. ValueError for rows, tokens, pages or slots
        that are beyond what was allocated: compiled code would follow them.
        """
        if sum(len(run.tokens) for run in runs):
            try:
                self._place(runs)
            except OverflowError as error:
                raise ValueError(f"a page or token past 32 bits: {error}") from None
            self._team.step()

    def _place(self, runs: Sequence[RowRun]) -> None:
        inputs, row, units, wanted = self._inputs, 0, 0, 0
        rows = sum(len(run.tokens) for run in runs)
        if rows > self.max_rows:
            raise ValueError(f"{rows} rows in a step of {self.max_rows}")
        for table, run in enumerate(run for run in runs if run.tokens):
            count = len(run.tokens)
            self._place_pages(run, inputs.tables[table * self.table_width : (table + 1) * self.table_width])
            inputs.tokens[row : row + count] = run.tokens
            inputs.positions[row : row + count] = np.arange(run.position, run.position + count)
            inputs.row_tables[row : row + count] = table
            for first in range(0, count, UNIT_ROWS):
                inputs.unit_rows[units] = row + first
                inputs.unit_counts[units] = min(UNIT_ROWS, count - first)
                units += 1
            row += count
            if run.slot is not None:
                if not 0 <= run.slot < self.slots:
                    raise ValueError(f"slot {run.slot} of {self.slots}")
                inputs.wanted_rows[wanted], inputs.wanted_slots[wanted] = row - 1, run.slot
                wanted += 1
        if not 0 <= inputs.tokens[:row].min() <= inputs.tokens[:row].max() < self.vocabulary_size:
            raise ValueError(f"a token outside the vocabulary of {self.vocabulary_size} reached the step")
        self._counts[ROWS], self._counts[UNITS], self._counts[WANTED] = row, units, wanted

    def _place_pages(self, run: RowRun, table: NDArray[np.int32]) -> None:
        if run.position < 0:
            raise ValueError(f"position {run.position}")
        last = run.position + len(run.tokens) - 1
        needed = last // PAGE_TOKENS + 1
        if needed > min(len(run.pages), len(table)):
            raise ValueError(f"position {last} with {len(run.pages)} pages, in a table of {len(table)}")
        used = table[:needed]
        used[:] = run.pages[:needed]
        if not 0 <= used.min() <= used.max() < self.pages.page_count:
            raise ValueError(f"pages {used.min()} to {used.max()} of {self.pages.page_count}")

    def close(self) -> None:
        """End the threads."""
        self._team.close()


def scratch_bytes(graph: Graph, max_rows: int) -> int:
    """Return the bytes of scratch one thread needs: totals of a tile, or an attention unit's states."""
    units = [
        unit_scratch_floats(op.q.width // op.heads, op.heads // op.kv_heads) * 4
        for op in graph.operations
        if isinstance(op, Attention)
    ]
    return round_up(max([max_rows * TILE_BYTES, *units]), CACHE_LINE_BYTES)


def _compiled_program() -> Callable[..., None]:
    compile_apart()
    from decodepool_kernels.cpu.program import take_part  # noqa: PLC0415 - after it is known where its code is kept

    return take_part


class Team:
    """The threads of a program. The caller of `step` is member 0; the others wait in compiled code, without the GIL."""

    def __init__(
        self,
        program: LoweredProgram,
        counts: NDArray[np.int64],
        inputs: StepInputs,
        scratch_bytes_each: int,
        threads: int,
    ) -> None:
        self.scratch = aligned_bytes(scratch_bytes_each * threads)
        self._shared = aligned_bytes(SHARED_BYTES)
        self._tallies = np.zeros(2 * len(program.records), np.int64)
        self._counts = counts
        self._threads = threads
        self._arguments = (program.records, program.reals, counts, inputs.arrays())
        self._scratch_bytes_each = scratch_bytes_each
        self._run = _compiled_program()
        self._followers = [
            threading.Thread(target=self._take_part, args=(member,), name=f"decodepool-step-{member}", daemon=True)
            for member in range(1, threads)
        ]
        for thread in self._followers:
            thread.start()

    def _take_part(self, member: int) -> None:
        scratch = address(self.scratch) + member * self._scratch_bytes_each
        self._run(*self._arguments, scratch, address(self._shared), self._tallies, member, self._threads)

    def step(self) -> None:
        """Run one step with the whole team. RuntimeError once it is closed."""
        if self._counts[STOP]:
            raise RuntimeError("the team is closed")
        self._take_part(0)

    def close(self) -> None:
        """Tell the other members to end, and wait until they have."""
        if not self._counts[STOP]:
            self._counts[STOP] = 1
            self._take_part(0)
        for thread in self._followers:
            thread.join()
        self._followers.clear()
