"""What a step brings to the device, as one buffer of int32; the kernels' twin is sources/step.cuh.

    header | tokens | positions | row tables | partials | chunk blocks | wanted rows | wanted slots |
    units | wide units | tables

A unit of attention is up to `tile_rows` rows of one session against a run of blocks. A run of few rows is cut into
chunks (groups of 8 blocks, or single blocks while there are few) whose states another kernel folds, so that a long
session keeps the whole GPU busy; many rows fold as they go, in wide units (wide_units.py) where the GPU has a program
for those. Either way the folds are the same tree: how a step is cut never reaches its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
from decodepool_sizing.layouts import round_up
from numpy.typing import NDArray

from decodepool_kernels.cuda.page_tables import GROUP_PAGES, PAGE_TOKENS, PageTables, blocks_of
from decodepool_kernels.cuda.wide_units import wide_units
from decodepool_kernels.runs import RowRun

COLUMNS = 8
"""Rows x query heads that attention takes at once."""
MOST_CUT_ROWS = 8
"""Rows of a run that is still cut into chunks."""

SINGLES_EACH, MOST_SINGLE_BLOCKS = 4, 32
"""Single blocks that a thread block may take, where rows see no more of them: half of a group's time, and few states to
fold. Longer rows are cut into groups unless their single blocks all run at once.
"""
MOST_CROWDED_ROWS = 4
"""Rows of a step up to which thread blocks that would take several single blocks are more and have shorter rings."""

MOST_SHARED_ROWS = 8
"""Rows of a step up to which thread blocks that would have an SM each share groups among teams."""

MAX_ROWS = 512
"""Rows that any step may have."""
HEADER_WORDS = 16
UNIT_WORDS = 8
ROWS, WANTED, UNITS = range(3)
WIDE_UNITS, LONGEST_UNITS = 6, 11
"""Words of the header that the host reads too; and the units that no other is longer than, which come first."""
NUMBER, WORDS_END, CHANGED_AT, CHANGED_END = range(7, 11)
"""The step's number, known once it begins; where its words but the tables end; the part of these that it brings."""
BROUGHT_WORDS = 4
"""What all that is brought is a multiple of."""
ANSWER_WORDS = 4
"""Of each row that is wanted: best id, bits of its logit, the token drawn where one was, and one of padding."""
TOKENS, POSITIONS, ROW_TABLES, PARTIALS, CHUNK_BLOCKS, WANTED_ROWS, WANTED_SLOTS = range(7)
ROW_ARRAYS = 7
UNITS_AT = HEADER_WORDS + ROW_ARRAYS * MAX_ROWS


class StepRun(RowRun, Protocol):
    """A run of a step that may begin before the one ahead has been read."""

    @property
    def follows(self) -> bool:
        """Whether it is one row whose token its slot drew last, which the device knows: `tokens` only counts it."""


@dataclass(frozen=True)
class AttentionCut:
    """What decides how attention is cut: query heads a kv head, units that fill the GPU, states there is room for,
    thread blocks of wide units that run at once, and of units that teams share: 0 where the GPU has no program for
    these.
    """

    group_heads: int
    kv_heads: int
    blocks_at_once: int
    partial_slots: int
    wide_at_once: int = 0
    shared_at_once: int = 0

    @property
    def tile_rows(self) -> int:
        """Rows of one unit."""
        return COLUMNS // min(COLUMNS, self.group_heads)

    @property
    def items(self) -> int:
        """Thread blocks that one unit keeps busy."""
        return self.kv_heads * -(-self.group_heads // COLUMNS)


@dataclass(frozen=True)
class StepKind:
    """What a step has for attention: units for the narrow program, units for the wide one; whether those of the narrow
    one are crowded (single blocks, of few rows and more than run at once) or shared (groups, no more than SMs).
    """

    narrow: bool = True
    wide: bool = False
    crowded: bool = False
    shared: bool = False


NARROW = StepKind()


@dataclass(frozen=True)
class StepLimits:
    """What a step may ask for: beyond it the device would read or write elsewhere."""

    rows: int
    slots: int
    pages: int
    table_width: int
    vocabulary_size: int


class StepInputs:
    """Fills a step's words, those that `take_words` gives as many of as asked for. What did not change since the step
    before is not written again, and need not be copied again.
    """

    def __init__(self, take_words: Callable[[int], NDArray[np.int32]], limits: StepLimits, cut: AttentionCut) -> None:
        self._limits, self._cut = limits, cut
        units = limits.rows + cut.partial_slots + cut.wide_at_once
        self._tables_at = UNITS_AT + UNIT_WORDS * units
        self.words = take_words(round_up(self._tables_at + limits.rows * limits.table_width, BROUGHT_WORDS))
        self._arrays = self.words[HEADER_WORDS:UNITS_AT].reshape(ROW_ARRAYS, MAX_ROWS)
        tables = self.words[self._tables_at :][: limits.rows * limits.table_width]
        self._tables = PageTables(tables.reshape(limits.rows, limits.table_width), limits.pages)
        self._cut_as: list[tuple[int, int]] = []
        self._units_end, self._unit_counts = UNITS_AT, (0, 0)
        self._is_crowded = self._is_shared = False

    def place(self, runs: Sequence[StepRun]) -> list[range]:
        """Write down a step of runs that hold tokens; return the words that the device must get. ValueError for rows,
        tokens, pages and slots that are not there; the step before stays then.
        """
        counts = [len(run.tokens) for run in runs]
        rows = self._rows(runs, counts)
        changed = self._tables.place(runs)
        wanted = self._place_rows(rows)
        units, wide = self._place_units(runs, counts)
        width = self._limits.table_width
        self.words[:WIDE_UNITS] = len(rows.tokens), wanted, units, UNITS_AT, self._tables_at, width
        self.words[WIDE_UNITS] = wide
        begin, end = (self._tables_at + width * row for row in (changed.start, changed.stop))
        part = range(begin // BROUGHT_WORDS * BROUGHT_WORDS, round_up(end, BROUGHT_WORDS)) if changed else range(0)
        self.words[WORDS_END : CHANGED_END + 1] = self._units_end, part.start, part.stop
        return [range(self._units_end), part] if changed else [range(self._units_end)]

    @property
    def kind(self) -> StepKind:
        """What the step last placed has for attention."""
        return StepKind(bool(self.words[UNITS]), bool(self.words[WIDE_UNITS]), self._is_crowded, self._is_shared)

    def _rows(self, runs: Sequence[StepRun], counts: Sequence[int]) -> _Rows:
        """Return what each row brings, checked."""
        ends = list(accumulate(counts))
        if ends[-1] > self._limits.rows:
            raise ValueError(f"a step of {ends[-1]} rows; it holds {self._limits.rows}")
        wanted = [(end - 1, run.slot) for end, run in zip(ends, runs, strict=True) if run.slot is not None]
        for _, slot in wanted:
            if not 0 <= slot < self._limits.slots:
                raise ValueError(f"slot {slot} of {self._limits.slots}")
        tokens = [token for run in runs for token in run.tokens]
        if not 0 <= min(tokens) <= max(tokens) < self._limits.vocabulary_size:
            raise ValueError(f"a token outside the vocabulary of {self._limits.vocabulary_size} reached the step")
        for end, count, run in zip(ends, counts, runs, strict=True):
            if run.follows:
                tokens[end - 1] = _drawn_last(run, count)
        positions = [run.position + i for run, count in zip(runs, counts, strict=True) for i in range(count)]
        tables = [table for table, count in enumerate(counts) for _ in range(count)]
        return _Rows(tokens, positions, tables, wanted)

    def _place_rows(self, rows: _Rows) -> int:
        """Write what each row brings; return how many rows' logits are wanted."""
        self._arrays[TOKENS : ROW_TABLES + 1, : len(rows.tokens)] = rows.tokens, rows.positions, rows.tables
        if rows.wanted:
            self._arrays[WANTED_ROWS : WANTED_SLOTS + 1, : len(rows.wanted)] = np.transpose(rows.wanted)
        return len(rows.wanted)

    def _place_units(self, runs: Sequence[StepRun], counts: Sequence[int]) -> tuple[int, int]:
        """Cut the runs into units, unless they are cut as those before; return how many there are, and wide ones."""
        cut_as = [
            (count, run.position // (PAGE_TOKENS if count == 1 else 1)) for run, count in zip(runs, counts, strict=True)
        ]
        if cut_as != self._cut_as:
            units, wide = self._cut_units(runs, counts)
            self._units_end = UNITS_AT + units.size + wide.size
            self.words[UNITS_AT : UNITS_AT + units.size] = units.reshape(-1)
            self.words[UNITS_AT + units.size : self._units_end] = wide.reshape(-1)
            self.words[LONGEST_UNITS] = np.count_nonzero(units[:, 3] == units[:1, 3])
            self._unit_counts, self._cut_as = (len(units), len(wide)), cut_as
        return self._unit_counts

    def _cut_units(self, runs: Sequence[StepRun], counts: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return units, the longest first, and wide units, and write each row's chunks down."""
        cut, row, slot = self._cut, 0, 0
        seen = [blocks_of(run.position + count - 1) for run, count in zip(runs, counts, strict=True)]
        blocks = cut.items * sum(n * b for n, b in zip(counts, seen, strict=True) if not self._is_wide(n))
        is_short = max(seen) <= MOST_SINGLE_BLOCKS and blocks <= SINGLES_EACH * cut.blocks_at_once
        chunk = 1 if is_short or blocks <= cut.blocks_at_once else GROUP_PAGES
        self._is_crowded = chunk == 1 and sum(counts) <= MOST_CROWDED_ROWS and blocks > cut.blocks_at_once
        singles: list[tuple[int, int, int, int]] = []
        units: list[Unit] = []
        wide: list[tuple[int, StepRun]] = []
        chunks_of_rows: list[tuple[int, int]] = []
        for run, count, last in zip(runs, counts, seen, strict=True):
            chunks = -(-last // chunk)
            is_cut = chunks > 1 and count <= MOST_CUT_ROWS and slot + count * chunks <= cut.partial_slots
            if count == 1:
                singles.append((row, last, chunks if is_cut else 1, run.position // PAGE_TOKENS))
            elif self._is_wide(count):
                wide.append((row, run))
            else:
                units.extend(_units(row, run.position, count, cut.tile_rows, chunk if is_cut else None))
            chunks_of_rows += [(slot + chunks * i, chunk) for i in range(count)] if is_cut else [(0, 0)] * count
            slot += count * chunks if is_cut else 0
            row += count
        self._arrays[PARTIALS : CHUNK_BLOCKS + 1, :row] = np.transpose(chunks_of_rows)
        every = _units_of_singles(singles, chunk)
        if units:
            every = np.concatenate([every, np.array(units, np.int32)])
        groups = cut.items * int(np.count_nonzero(every[:, 3] >= GROUP_PAGES))
        self._is_shared = chunk > 1 and row <= MOST_SHARED_ROWS and 0 < groups <= cut.shared_at_once
        found = wide_units(wide, cut.group_heads, cut.wide_at_once // cut.kv_heads)
        longest_first = np.argsort(-every[:, 3], kind="stable")
        return every[longest_first], np.array(found, np.int32).reshape(-1, UNIT_WORDS)

    def _is_wide(self, count: int) -> bool:
        return count > MOST_CUT_ROWS and self._cut.wide_at_once >= self._cut.kv_heads


@dataclass(frozen=True)
class _Rows:
    """A value a row, and (row, slot) of those whose logits are wanted."""

    tokens: list[int]
    positions: list[int]
    tables: list[int]
    wanted: list[tuple[int, int]]


def _drawn_last(run: StepRun, count: int) -> int:
    """Return what stands for the token that a run's slot drew last; ValueError for one that cannot follow it."""
    if run.slot is None or count != 1:
        raise ValueError(f"{count} rows of slot {run.slot} follow what it drew")
    return ~run.slot


Unit = tuple[int, int, int, int, int, int, int, int]
"""Row, rows, first block, blocks, chunk (-1: all of them), first block that the step writes to, two of padding."""


def _units_of_singles(singles: Sequence[tuple[int, int, int, int]], chunk: int) -> NDArray[np.int32]:
    """Return the units of runs of one row: (row, blocks, chunks, 1 for all of them at once, first block written to)."""
    rows, seen, chunks, fresh = np.array(singles, np.int32).reshape(-1, 4).T
    each = np.repeat(np.arange(len(rows)), chunks)
    index = np.arange(len(each)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    is_cut = chunks[each] > 1
    units = np.zeros((len(each), UNIT_WORDS), np.int32)
    units[:, 0], units[:, 1], units[:, 5] = rows[each], 1, fresh[each]
    units[:, 2] = index * chunk
    units[:, 3] = np.where(is_cut, np.minimum(chunk, seen[each] - units[:, 2]), seen[each])
    units[:, 4] = np.where(is_cut, index, -1)
    return units


def _units(row: int, position: int, count: int, tile_rows: int, chunk: int | None) -> Iterator[Unit]:
    """Yield a run's units."""
    fresh = position // PAGE_TOKENS
    for first in range(0, count, tile_rows):
        rows = min(tile_rows, count - first)
        seen = blocks_of(position + first + rows - 1)
        if chunk is None:
            yield row + first, rows, 0, seen, -1, fresh, 0, 0
            continue
        for index, begin in enumerate(range(0, seen, chunk)):
            yield row + first, rows, begin, min(chunk, seen - begin), index, fresh, 0, 0
