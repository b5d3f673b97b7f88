"""How a matrix product is cut on a GPU: tiles a block, stages of the ring, blocks. None of it reaches the bits."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from decodepool_sizing.layouts import TILE_OUTPUTS

from decodepool_kernels.cuda.errors import CannotCompile
from decodepool_kernels.cuda.packing import MatrixKind

SLICES = 8
GROUP_BLOCKS = 4
MOST_PARTS = 3
MOST_STAGES = 4
FEWEST_STAGES = 2
ROW_TILES = (4, 2)
WIDE_OUTPUTS = 256
FEWEST_WIDE_ROWS = 24
FRAGMENT_BYTES = 512
WARPGROUP_TILES = (3, 4, 6, 8)
WARPGROUP_THREADS = 640
WARPGROUP_WARPS = 16
"""Warps of a block that hand sums on."""
MOST_COLUMN_STAGES = 8
MOST_FEW_ROWS = 8
MOST_SPREAD_ROWS = 4
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
        return self.places(outputs) * -(-rows // (8 * self.tiles)) * (SLICES if self.split else 1)

    def partial_bytes(self, outputs: Sequence[int], rows: int) -> int:
        """Return the bytes of the slices that are left apart."""
        return 4 * SLICES * rows * WIDE_OUTPUTS * self.places(outputs) if self.split else 0


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
            return replace(whole, split=2 * whole.units(outputs, rows) < sm_count)
    return None


@dataclass(frozen=True)
class WarpgroupCut:
    """Tiles of 8 rows that a block of `matmul_warpgroup` takes with 256 outputs, its two pipes, and whether each slice
    is left by itself, to be folded by who takes it or `fold_slices`; else blocks hand their sums on.
    """

    tiles: int
    weight_stages: int
    column_stages: int
    column_blocks: int
    split: bool
    shared_bytes: int

    def defines(self) -> dict[str, int]:
        """Return the source's defines."""
        pipes = {"WEIGHT_STAGES": self.weight_stages, "COLUMN_STAGES": self.column_stages}
        return {"TILES": self.tiles, **pipes, "COLUMN_BLOCKS": self.column_blocks, "SPLIT": int(self.split)}

    def places(self, outputs: Sequence[int]) -> int:
        """Return how many times 256 outputs there are."""
        return sum(-(-count // WIDE_OUTPUTS) for count in outputs)

    def slices(self, outputs: Sequence[int], rows: int) -> int:
        """Return the slices of all units: what blocks share out."""
        return SLICES * self.places(outputs) * -(-rows // (8 * self.tiles))

    def partial_bytes(self, outputs: Sequence[int], rows: int, blocks: int) -> int:
        """Return the bytes of the slices that are left apart, or of the sums that are handed on."""
        if self.split:
            return 4 * SLICES * rows * WIDE_OUTPUTS * self.places(outputs)
        return blocks * WIDE_OUTPUTS * 8 * self.tiles * 4


def warpgroup_cut(
    kind: MatrixKind, outputs: Sequence[int], rows: int, sm_count: int, shared_bytes: int
) -> WarpgroupCut | None:
    """Return the cut for up to `rows` rows; None where no cut fits the shared memory."""
    groups = -(-rows // (8 * WARPGROUP_TILES[-1]))
    tiles = next(tiles for tiles in WARPGROUP_TILES if 8 * tiles * groups >= rows)
    cut = WarpgroupCut(tiles, 0, 0, 0, split=False, shared_bytes=shared_bytes)
    cut = replace(cut, split=cut.slices(outputs, rows) < FEWEST_SLICES * sm_count)
    totals = 0 if cut.split else tiles * 8 * WIDE_OUTPUTS * 4
    weight_bytes = WIDE_OUTPUTS // TILE_OUTPUTS * kind.group_bytes
    block_bytes = FRAGMENT_BYTES * (tiles * kind.planes + kind.has_minimum)
    for weight_stages, blocks in product((3, 2), (4, 2, 1) if tiles <= 4 or cut.split else (2, 1)):
        room = shared_bytes - BARRIER_BYTES - totals - weight_stages * weight_bytes
        stages = room // (blocks * block_bytes)
        if stages >= FEWEST_STAGES:
            stages = min(stages, MOST_COLUMN_STAGES)
            taken = BARRIER_BYTES + totals + weight_stages * weight_bytes + stages * blocks * block_bytes
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
    sizes = _fitting(kind, 1 if rows <= 8 else 2, shared_bytes) or _fitting(kind, 1, shared_bytes)
    if not sizes:
        raise CannotCompile(f"weights of {kind.code_bits} bits need more than {shared_bytes} bytes of shared memory")
    if sizes[0].tiles == 1:
        narrow = [cut for cut in sizes if cut.row_tiles == ROW_TILES[-1]]
        if narrow[-1].units(outputs, rows) > sm_count:
            return next((cut for cut in narrow if 2 * cut.shared_bytes <= shared_bytes), narrow[-1])
        alone = max(narrow[0].shared_bytes, shared_bytes * 5 // 8)  # else two blocks share an SM while others idle
        return replace(narrow[0], shared_bytes=alone)
    return min(sizes, key=lambda cut: cut.row_tiles * -(-cut.units(outputs, rows) // sm_count))


def _fitting(kind: MatrixKind, tiles: int, shared_bytes: int) -> list[ProductCut]:
    """Return the cuts that fit, many outputs before few, deep rings before short ones."""
    every = [
        _cut(kind, row_tiles, tiles, stages)
        for row_tiles in ROW_TILES
        for stages in range(MOST_STAGES, FEWEST_STAGES - 1, -1)
    ]
    return [cut for cut in every if cut.shared_bytes <= shared_bytes]


def _cut(kind: MatrixKind, row_tiles: int, tiles: int, stages: int) -> ProductCut:
    stage_bytes = SLICES * row_tiles * kind.group_bytes
    return ProductCut(row_tiles, tiles, stages, stages * stage_bytes + row_tiles * tiles * TILE_SUM_BYTES)


@dataclass(frozen=True)
class FewCut:
    """How `matmul_few` takes few rows: `teams` of 8 warps a block, each with `row_tiles` x 16 outputs, and the depth of
    the ring. `is_spread` where rows stand in every other column of a tensor core's.
    """

    row_tiles: int
    teams: int
    is_spread: bool
    stages: int
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * SLICES * self.teams

    def defines(self) -> dict[str, int]:
        """Return the source's defines."""
        cut = {"ROW_TILES": self.row_tiles, "TEAMS": self.teams, "SPREAD": int(self.is_spread)}
        return {**cut, "STAGES": self.stages, "BLOCKS": 2 // self.teams}

    def units(self, outputs: Sequence[int]) -> int:
        """Return the units of a product."""
        width = TILE_OUTPUTS * self.row_tiles * self.teams
        return sum(-(-count // width) for count in outputs)


def few_cut(kind: MatrixKind, outputs: Sequence[int], rows: int, *, sm_count: int, shared_bytes: int) -> FewCut | None:
    """Return the cut for up to `rows` rows of a k-quant; None where `matmul` is the faster or the only program.

    Where there are enough units of 4-bit codes two blocks share an SM, else one has twice the warps.
    """
    is_spread = rows <= MOST_SPREAD_ROWS
    whole = FewCut(2, 1, is_spread, 0, 0)
    is_shared = kind.code_bits == 4 and whole.units(outputs) > sm_count
    if not kind.is_factored or rows > (MOST_FEW_ROWS if is_shared else MOST_SPREAD_ROWS):
        return None
    taken = 2 * SLICES * 2 * 32 * (8 if is_spread else 16) + SLICES * 2 * kind.shared_scale_bytes
    slot_bytes = SLICES * 2 * kind.group_bytes
    stages = min(MOST_STAGES, (shared_bytes // (2 if is_shared else 1) - taken) // slot_bytes)
    if stages < FEWEST_STAGES:
        return None
    cut = whole if is_shared else replace(whole, row_tiles=1, teams=2)
    return replace(cut, stages=stages, shared_bytes=taken + stages * slot_bytes)
