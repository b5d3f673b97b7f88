"""How a matrix product is cut on a GPU: tiles a block, stages of the ring, blocks. None of it reaches the bits."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from decodepool_sizing.layouts import GROUP_BLOCKS, TILE_OUTPUTS

from decodepool_kernels.cuda.errors import CannotCompile
from decodepool_kernels.cuda.packing import GROUP_SUMS, HALF_SUMS, NO_SUMS, MatrixKind

SLICES = 8
MOST_PARTS = 3
MOST_STAGES = 4
FEWEST_STAGES = 2
ROW_TILES, LEAST_ROW_TILES = (4, 2), (1,)
"""Tiles of 16 outputs that a block of `matmul` takes, and those where shared memory holds no ring of as many."""
WIDE_OUTPUTS = 256
FEWEST_WIDE_ROWS = 24
FRAGMENT_BYTES = 512
WARPGROUP_TILES = (3, 4, 6, 8)
TALL_OUTPUTS, TALL_TILES = 128, 16
"""Outputs and tiles of 8 rows of a unit of `matmul_warpgroup` where there are rows enough to fill it."""
COPYING_WARPGROUP = 128
WARPGROUP_WARPS = 16
"""Warps of a block that hand sums on, at most."""
MOST_COLUMN_STAGES = 8
FEW_ROWS = (1, 2, 4, 8)
"""Rows that `matmul_few` holds in shared memory."""
FEW_STAGES = 2
"""Slots of a ring of `matmul_few`: more weights on their way would delay the activations."""
MOST_TEAMS = {1: 3, 2: 2}
"""Teams of `matmul_few` that an SM has registers for, by the tiles that a warp takes at once."""
MOST_OWN_SUMS = 4
"""Sums of a slice that a lane of `matmul_few` has, at most."""
BARRIER_BYTES = 256
FEWEST_SLICES = 5
"""Slices of a block below which they are left apart: handing sums on would take longer than to fold them."""
TILE_SUM_BYTES = 2 * SLICES * 32 * 16
"""Shared memory in which the slices of one tile of 16 outputs x 8 rows meet, for two units in turn."""


class Part(ctypes.Structure):
    """One matrix of a product, as the kernel takes it."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_longlong),
        ("outputs", ctypes.c_int),
        ("zero", ctypes.c_int),
    )


class Parts(ctypes.Structure):
    """Up to three matrices of one kind that take the same activation."""

    _fields_ = (("part", Part * MOST_PARTS), ("count", ctypes.c_int))


class Slices(ctypes.Structure):
    """Sums of a product's parts that were left apart, `[slice][row][width]`, for the kernel that takes them
    (slices.cuh): the scales `[slice][columns]` they are folded with, each part's bias and where it begins in a row.
    """

    _fields_ = (
        ("sums", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("biases", ctypes.c_void_p * MOST_PARTS),
        ("width", ctypes.c_longlong),
        ("columns", ctypes.c_int),
        ("first", ctypes.c_int * MOST_PARTS),
    )


@dataclass(frozen=True)
class WideCut:
    """Tiles of 8 rows that a block of `matmul_wide` takes with 256 outputs, the depth of its ring, and whether a unit
    is one slice, to be folded by who takes it or `fold_slices`.
    """

    tiles: int
    stages: int
    split: bool
    shared_bytes: int

    def defines(self) -> dict[str, int]:
        """Return the source's defines."""
        return {"TILES": self.tiles, "STAGES": self.stages, "SPLIT": int(self.split)}

    def places(self, outputs: Sequence[int]) -> int:
        """Return how many times 256 outputs there are."""
        return sum(-(-count // WIDE_OUTPUTS) for count in outputs)

    def units(self, outputs: Sequence[int], rows: int) -> int:
        """Return the units of a product with this many rows."""
        return self.whole_units(outputs, rows) * (SLICES if self.split else 1)

    def whole_units(self, outputs: Sequence[int], rows: int) -> int:
        """Return the units of all slices."""
        return self.places(outputs) * -(-rows // (8 * self.tiles))

    def fewest_whole(self, sm_count: int) -> int:
        """Return the whole units below which slices are left apart."""
        return -(-sm_count // 2)


def wide_cut(kind: MatrixKind, outputs: Sequence[int], rows: int, sm_count: int, shared_bytes: int) -> WideCut | None:
    """Return the cut for up to `rows` rows; None where they are too few, or the GPU's shared memory too small."""
    if rows < FEWEST_WIDE_ROWS:
        return None
    for tiles in (4,) if rows <= 32 else (8, 4):
        columns_bytes = GROUP_BLOCKS * tiles * kind.planes * FRAGMENT_BYTES
        stage_bytes = WIDE_OUTPUTS // TILE_OUTPUTS * kind.group_bytes + columns_bytes
        stages = min(MOST_STAGES, shared_bytes // stage_bytes)
        if stages >= 2:
            whole = WideCut(tiles, stages, False, stages * stage_bytes)
            return replace(whole, split=whole.whole_units(outputs, rows) < whole.fewest_whole(sm_count))
    return None


@dataclass(frozen=True)
class WarpgroupCut:
    """Outputs and tiles of 8 rows of a unit of `matmul_warpgroup`, its two pipes, and whether each slice is left by
    itself, to be folded by who takes it or `fold_slices`; else blocks hand their sums on.
    """

    outputs: int
    tiles: int
    weight_stages: int
    column_stages: int
    column_blocks: int
    split: bool
    shared_bytes: int

    def defines(self) -> dict[str, int]:
        """Return the source's defines."""
        pipes = {"WEIGHT_STAGES": self.weight_stages, "COLUMN_STAGES": self.column_stages}
        unit = {"TILES": self.tiles, "HALF": int(self.outputs < WIDE_OUTPUTS), "SPLIT": int(self.split)}
        return {**unit, **pipes, "COLUMN_BLOCKS": self.column_blocks}

    @property
    def threads(self) -> int:
        """Threads of a block: a warp for 16 outputs, and those that copy."""
        return 32 * self.outputs // TILE_OUTPUTS + COPYING_WARPGROUP

    def places(self, outputs: Sequence[int]) -> int:
        """Return how many times 256 outputs there are."""
        return sum(-(-count // WIDE_OUTPUTS) for count in outputs)

    def slices(self, outputs: Sequence[int], rows: int) -> int:
        """Return the slices of all units: what blocks share out."""
        units = self.places(outputs) * (WIDE_OUTPUTS // self.outputs)
        return SLICES * units * -(-rows // (8 * self.tiles))

    def whole_units(self, outputs: Sequence[int], rows: int) -> int:
        """Return the units of all slices, of as many outputs as they have where blocks hand sums on."""
        whole = replace(self, outputs=TALL_OUTPUTS if self.tiles == TALL_TILES else WIDE_OUTPUTS)
        return whole.slices(outputs, rows) // SLICES

    def fewest_whole(self, sm_count: int) -> int:
        """Return the whole units below which slices are left apart: blocks would have few of them each."""
        return -(-FEWEST_SLICES * sm_count // SLICES)

    def blocks(self, outputs: Sequence[int], rows: int, sm_count: int) -> int:
        """Return the thread blocks that share its slices out."""
        return min(self.slices(outputs, rows), sm_count)

    def handed_bytes(self, outputs: Sequence[int], rows: int, sm_count: int) -> int:
        """Return the bytes of the sums that its blocks hand on."""
        return self.blocks(outputs, rows, sm_count) * self.outputs * 8 * self.tiles * 4


def _warpgroup_unit(kind: MatrixKind, rows: int, *, is_full: bool) -> tuple[int, int]:
    """Return the outputs and the tiles of 8 rows of a unit for up to `rows` rows. Tall units save what it takes to
    widen codes, of which 16-bit weights need nothing; where every block adds its minima they are slower, and twice as
    slow where few of the rows are there.
    """
    is_tall = kind.code_bits < 16 and kind.sums != HALF_SUMS
    if is_full and is_tall and rows % (8 * TALL_TILES) == 0:
        return TALL_OUTPUTS, TALL_TILES
    groups = -(-rows // (8 * WARPGROUP_TILES[-1]))
    return WIDE_OUTPUTS, next(tiles for tiles in WARPGROUP_TILES if 8 * tiles * groups >= rows)


def _evened(cut: WarpgroupCut, slices: int, sm_count: int) -> WarpgroupCut:
    """Return the cut with half the outputs a unit where the last of its slices would leave most SMs idle: a slice of
    half the outputs takes 0.6 of the time.
    """
    is_better = 3 * -(-2 * slices // sm_count) < 5 * -(-slices // sm_count)
    return replace(cut, outputs=TALL_OUTPUTS) if is_better and cut.outputs == WIDE_OUTPUTS else cut


def _pipes(kind: MatrixKind, tiles: int, *, split: bool) -> list[tuple[int, int]]:
    """Return the stages of weights and the blocks of a stage of activations that a cut may have, those preferred first:
    whole groups where a chain goes through them.
    """
    blocks = (4, 2, 1) if tiles <= 4 or split or kind.has_group_chains else (2, 1)
    ways = list(product((3, 2), (1,) if tiles == TALL_TILES else blocks))
    return sorted(ways, key=lambda way: -way[1]) if kind.has_group_chains else ways


def _column_stage_bytes(kind: MatrixKind, tiles: int, blocks: int) -> int:
    """Return the bytes of a stage of activations: fragments, and sums of blocks or of a group in whole fragments."""
    sums = {NO_SUMS: 0, HALF_SUMS: blocks * -(-tiles // 8), GROUP_SUMS: -(-tiles // 2)}[kind.sums]
    return FRAGMENT_BYTES * (blocks * tiles * kind.planes + sums)


def warpgroup_cut(
    kind: MatrixKind, outputs: Sequence[int], rows: int, sm_count: int, shared_bytes: int, *, is_full: bool = True
) -> WarpgroupCut | None:
    """Return the cut for up to `rows` rows, most of which there are where the step `is_full`; None where no cut fits
    the shared memory.
    """
    unit_outputs, tiles = _warpgroup_unit(kind, rows, is_full=is_full)
    cut = WarpgroupCut(unit_outputs, tiles, 0, 0, 0, split=False, shared_bytes=shared_bytes)
    cut = replace(cut, split=cut.whole_units(outputs, rows) < cut.fewest_whole(sm_count))
    if cut.split:
        cut = _evened(cut, cut.slices(outputs, rows), sm_count)
    totals = 0 if cut.split else tiles * 8 * (unit_outputs + SLICES) * 4
    weight_bytes = cut.outputs // TILE_OUTPUTS * kind.group_bytes
    for weight_stages, blocks in _pipes(kind, tiles, split=cut.split):
        room = shared_bytes - BARRIER_BYTES - totals - weight_stages * weight_bytes
        stage_bytes = _column_stage_bytes(kind, tiles, blocks)
        stages = min(room // stage_bytes, MOST_COLUMN_STAGES)
        if stages >= FEWEST_STAGES:
            taken = shared_bytes - room + stages * stage_bytes
            return replace(
                cut, weight_stages=weight_stages, column_stages=stages, column_blocks=blocks, shared_bytes=taken
            )
    return None


@dataclass(frozen=True)
class ProductCut:
    """Tiles of 16 outputs and of 8 rows that a block takes at once, and the depth of its ring."""

    row_tiles: int
    tiles: int
    stages: int
    shared_bytes: int

    def defines(self) -> dict[str, int]:
        """Return the source's defines."""
        return {"ROW_TILES": self.row_tiles, "TILES": self.tiles, "STAGES": self.stages}

    def units(self, outputs: Sequence[int], rows: int) -> int:
        """Return the units of a product with this many rows."""
        width = TILE_OUTPUTS * self.row_tiles
        return sum(-(-count // width) for count in outputs) * -(-rows // (8 * self.tiles))


def product_cut(kind: MatrixKind, outputs: Sequence[int], rows: int, *, sm_count: int, shared_bytes: int) -> ProductCut:
    """Return the cut for up to `rows` rows; CannotCompile where the GPU has too little shared memory for any.

    Up to 8 rows: where there are enough units two blocks share an SM, each with the deepest ring that leaves room for
    both; else one block an SM reads far ahead. More rows: the most outputs a block that leave no SM waiting for the
    others.
    """
    ways = product((ROW_TILES, LEAST_ROW_TILES), (1,) if rows <= 8 else (2, 1))
    sizes = next((found for way in ways if (found := _fitting(kind, *way, shared_bytes))), None)
    if sizes is None:
        raise CannotCompile(f"weights of {kind.code_bits} bits need more than {shared_bytes} bytes of shared memory")
    if sizes[0].tiles == 1:
        narrow = [cut for cut in sizes if cut.row_tiles == sizes[-1].row_tiles]
        if narrow[-1].units(outputs, rows) > sm_count:
            return next((cut for cut in narrow if 2 * cut.shared_bytes <= shared_bytes), narrow[-1])
        alone = max(narrow[0].shared_bytes, shared_bytes * 5 // 8)  # else two blocks share an SM while others idle
        return replace(narrow[0], shared_bytes=alone)
    return min(sizes, key=lambda cut: cut.row_tiles * -(-cut.units(outputs, rows) // sm_count))


def _fitting(kind: MatrixKind, row_tiles: Sequence[int], tiles: int, shared_bytes: int) -> list[ProductCut]:
    """Return the cuts that fit, many outputs before few, deep rings before short ones."""
    every = [
        _cut(kind, outputs, tiles, stages)
        for outputs in row_tiles
        for stages in range(MOST_STAGES, FEWEST_STAGES - 1, -1)
    ]
    return [cut for cut in every if cut.shared_bytes <= shared_bytes]


def _cut(kind: MatrixKind, row_tiles: int, tiles: int, stages: int) -> ProductCut:
    stage_bytes = SLICES * row_tiles * kind.group_bytes
    return ProductCut(row_tiles, tiles, stages, stages * stage_bytes + row_tiles * tiles * TILE_SUM_BYTES)


@dataclass(frozen=True)
class FewCut:
    """How `matmul_few` takes up to `rows` rows: `teams` of 8 warps a block, each with units of `row_tiles` x 16
    outputs.
    """

    rows: int
    row_tiles: int
    teams: int
    shared_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * SLICES * self.teams

    def defines(self) -> dict[str, int]:
        """Return the source's defines."""
        return {"MOST_ROWS": self.rows, "ROW_TILES": self.row_tiles, "TEAMS": self.teams, "STAGES": FEW_STAGES}

    def units(self, outputs: Sequence[int]) -> int:
        """Return the units of a product."""
        width = TILE_OUTPUTS * self.row_tiles
        return sum(-(-count // width) for count in outputs)

    def blocks(self, outputs: Sequence[int], sm_count: int) -> int:
        """Return the thread blocks of a product, no more than give each team a unit: a product beside it takes the
        other SMs.
        """
        return min(-(-self.units(outputs) // self.teams), sm_count)


def few_cut(
    kind: MatrixKind, outputs: Sequence[int], inputs: int, rows: int, *, sm_count: int, shared_bytes: int
) -> FewCut | None:
    """Return the cut for up to `rows` rows of a k-quant; None where `matmul` is the faster or the only program.

    A warp takes two tiles, which cost it fewer instructions than one twice, but where there is a team for every tile or
    it has sums of 8 rows, which pay for many outputs of 4-bit codes alone. A block has as many teams as have a unit
    each.
    """
    held = next((most for most in FEW_ROWS if rows <= most), None)
    if not kind.is_factored or held is None:
        return None
    cut = FewCut(held, 1, 1)
    if held == FEW_ROWS[-1] and (kind.code_bits != 4 or cut.units(outputs) <= MOST_TEAMS[1] * sm_count):
        return None
    if held < FEW_ROWS[-1] and cut.units(outputs) > MOST_TEAMS[2] * sm_count:
        cut = FewCut(held, 2, 1)
    lane_bytes = 32 * 4 * min(held, MOST_OWN_SUMS)
    team_bytes = SLICES * (FEW_STAGES * cut.row_tiles * kind.group_bytes + 4 * held + 2 * lane_bytes)
    for teams in range(min(MOST_TEAMS[cut.row_tiles], -(-cut.units(outputs) // sm_count)), 0, -1):
        taken = kind.held_bytes(inputs, held) + teams * team_bytes
        if taken <= shared_bytes:
            return replace(cut, teams=teams, shared_bytes=taken)
    return None
