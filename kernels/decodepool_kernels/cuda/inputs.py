"""What a step brings to the device, as one buffer of int32; the kernels' twin is sources/step.cuh.

    header | tokens | positions | row tables | partials | chunk blocks | wanted rows | wanted slots |
    units | wide units | tables

A unit of attention is up to `tile_rows` rows of one session against a run of blocks. A run of few rows is cut into
chunks (groups of 8 blocks, or single blocks while there are few) whose states another kernel folds, so that a long
session keeps the whole GPU busy; many rows fold as they go, in wide units (wide_units.py) where the GPU has a program
for those. Either way the folds are the same tree: how a step is cut never reaches its bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decodepool_kernels.cuda.wide_units import wide_units
from decodepool_kernels.runs import RowRun

PAGE_TOKENS = 64
GROUP_BLOCKS = 8
COLUMNS = 8
"""Rows x query heads that attention takes at once."""
MOST_CUT_ROWS = 8
"""Rows of a run that is still cut into chunks."""

MAX_ROWS = 256
"""Rows that any step may have."""
HEADER_WORDS = 8
UNIT_WORDS = 8
ROWS, WANTED = range(2)
WIDE_UNITS = 6
"""Words of the header that the host reads too."""
TOKENS, POSITIONS, ROW_TABLES, PARTIALS, CHUNK_BLOCKS, WANTED_ROWS, WANTED_SLOTS = range(7)
ROW_ARRAYS = 7


@dataclass(frozen=True)
class AttentionCut:
    """What decides how attention is cut: query heads a kv head, units that fill the GPU, states there is room for, and
    thread blocks of wide units that run at once, 0 where the GPU has no program for these.
    """

    group_heads: int
    kv_heads: int
    blocks_at_once: int
    partial_slots: int
    wide_at_once: int = 0

    @property
    def tile_rows(self) -> int:
        """Rows of one unit."""
        return COLUMNS // min(COLUMNS, self.group_heads)

    @property
    def items(self) -> int:
        """Thread blocks that one unit keeps busy."""
        return self.kv_heads * -(-self.group_heads // COLUMNS)


class StepInputs:
    """Fills `words` with rows that each have a table of `table_width` pages."""

    def __init__(self, words: NDArray[np.int32], table_width: int, cut: AttentionCut) -> None:
        self.words = words
        self._table_width, self._cut = table_width, cut
        self._arrays = words[HEADER_WORDS : HEADER_WORDS + ROW_ARRAYS * MAX_ROWS].reshape(ROW_ARRAYS, MAX_ROWS)

    @staticmethod
    def words_needed(max_rows: int, table_width: int, cut: AttentionCut) -> int:
        """Return the words of the largest step."""
        units = max_rows + cut.partial_slots + cut.wide_at_once
        return HEADER_WORDS + ROW_ARRAYS * MAX_ROWS + units * UNIT_WORDS + max_rows * table_width

    def place(self, runs: Sequence[RowRun]) -> int:
        """Write down a step of runs that hold tokens; return how many words it takes."""
        tokens: list[int] = []
        positions: list[int] = []
        tables: list[int] = []
        wanted: list[tuple[int, int]] = []
        for table, run in enumerate(runs):
            tokens.extend(run.tokens)
            positions.extend(range(run.position, run.position + len(run.tokens)))
            tables.extend([table] * len(run.tokens))
            if run.slot is not None:
                wanted.append((len(tokens) - 1, run.slot))
        for which, values in ((TOKENS, tokens), (POSITIONS, positions), (ROW_TABLES, tables)):
            self._arrays[which, : len(tokens)] = values
        if wanted:
            self._arrays[WANTED_ROWS : WANTED_SLOTS + 1, : len(wanted)] = np.transpose(wanted)
        units, wide = self._cut_units(runs, len(tokens))
        units_at = HEADER_WORDS + ROW_ARRAYS * MAX_ROWS
        tables_at = units_at + UNIT_WORDS * (len(units) + len(wide))
        self.words[units_at:tables_at] = np.array([*units, *wide], np.int32).reshape(-1)
        header = (len(tokens), len(wanted), len(units), units_at, tables_at, self._table_width, len(wide))
        self.words[: len(header)] = header
        return self._place_tables(runs, tables_at)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens of the step last placed."""
        return self._arrays[TOKENS, : self.words[ROWS]]

    def _place_tables(self, runs: Sequence[RowRun], at: int) -> int:
        for run in runs:
            pages = run.pages[: _blocks(run.position + len(run.tokens) - 1)]
            self.words[at : at + len(pages)] = pages
            at += self._table_width
        return at

    @property
    def has_wide_units(self) -> bool:
        """Whether the step last placed has rows for the wide program."""
        return bool(self.words[WIDE_UNITS])

    def _cut_units(self, runs: Sequence[RowRun], rows: int) -> tuple[list[Unit], list[Unit]]:
        """Return units, the longest first, and wide units, and write each row's chunks down."""
        cut, row, slot = self._cut, 0, 0
        narrow = [run for run in runs if not self._is_wide(run)]
        blocks = sum(len(run.tokens) * _blocks(run.position + len(run.tokens) - 1) for run in narrow)
        chunk = 1 if blocks * cut.items <= cut.blocks_at_once else GROUP_BLOCKS
        units: list[Unit] = []
        wide: list[tuple[int, RowRun]] = []
        chunks_of_rows: list[tuple[int, int]] = []
        for run in runs:
            count = len(run.tokens)
            chunks = -(-_blocks(run.position + count - 1) // chunk)
            is_cut = chunks > 1 and count <= MOST_CUT_ROWS and slot + count * chunks <= cut.partial_slots
            if self._is_wide(run):
                wide.append((row, run))
            else:
                units.extend(_units(row, run.position, count, cut.tile_rows, chunk if is_cut else None))
            chunks_of_rows.extend((slot + chunks * i, chunk) if is_cut else (0, 0) for i in range(count))
            slot += count * chunks if is_cut else 0
            row += count
        self._arrays[PARTIALS : CHUNK_BLOCKS + 1, :rows] = np.transpose(chunks_of_rows)
        units.sort(key=_unit_blocks, reverse=True)
        return units, wide_units(wide, cut.group_heads, cut.wide_at_once // cut.kv_heads)

    def _is_wide(self, run: RowRun) -> bool:
        return len(run.tokens) > MOST_CUT_ROWS and self._cut.wide_at_once >= self._cut.kv_heads


Unit = tuple[int, int, int, int, int, int, int, int]
"""Row, rows, first block, blocks, chunk (-1: all of them), first block that the step writes to, two of padding."""


def _unit_blocks(unit: Unit) -> int:
    return unit[3]


def _blocks(position: int) -> int:
    """Return the blocks that a row at a position sees."""
    return position // PAGE_TOKENS + 1


def _units(row: int, position: int, count: int, tile_rows: int, chunk: int | None) -> Iterator[Unit]:
    """Yield a run's units."""
    fresh = position // PAGE_TOKENS
    for first in range(0, count, tile_rows):
        rows = min(tile_rows, count - first)
        seen = _blocks(position + first + rows - 1)
        if chunk is None:
            yield row + first, rows, 0, seen, -1, fresh, 0, 0
            continue
        for index, begin in enumerate(range(0, seen, chunk)):
            yield row + first, rows, begin, min(chunk, seen - begin), index, fresh, 0, 0
