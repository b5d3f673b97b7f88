"""How `matmul_cluster` cuts a product: a cluster of two thread blocks a unit. None of it reaches the bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodepool_sizing.layouts import BLOCK_INPUTS, GROUP_BLOCKS, TILE_OUTPUTS

from decodepool_kernels.cuda.packing import MatrixKind
from decodepool_kernels.cuda.products import (
    FEWEST_STAGES,
    FRAGMENT_BYTES,
    MOST_STAGES,
    SLICES,
)

CLUSTER_BLOCKS = 2
UNIT_TILES, WARP_TILES = (4, 6), 2
"""Tiles of 16 outputs of a unit, those preferred first, and of a warp."""
MOST_LARGE_ROWS = 4
"""Rows up to which the larger units are no slower, of kinds whose groups are not one chain."""
MOST_ROWS, MOST_FEW_ROWS = 16, 4
"""Rows that clusters take, and those up to which `matmul_few` is the faster for a k-quant."""
HELD_ROWS, PLANE_ROW_BYTES = (2, 4, 8), 64
"""Rows that a tile of an activation has room for, and the bytes of one in a plane of a block."""
LEAST_BUSY = {1: 0.8, 2: 0.5}
"""Share of the clusters at work, by tiles of 8 rows, below which another program is faster."""
FEWEST_STAGES_BESIDE_HELD = 3


@dataclass(frozen=True)
class ClusterCut:
    """How `matmul_cluster` takes up to 16 rows, `tiles` of 8 or one of `held_rows`: units of `unit_tiles` x 16 outputs
    for a cluster of two blocks, of which a warp takes two tiles for one slice, the depth of a slice's ring, and the
    groups of a slice whose activations stay: all of them, or 0 where they come with the weights.
    """

    unit_tiles: int
    tiles: int
    held_rows: int
    held_groups: int
    stages: int
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Threads of a block: warps that compute, two that copy, and those that fold, one a tile and 8 rows of what the
        block owns of a unit.
        """
        own_tiles = self.unit_tiles // CLUSTER_BLOCKS
        return 32 * (SLICES // CLUSTER_BLOCKS * self.unit_tiles // WARP_TILES + 2 + own_tiles * self.tiles)

    def defines(self) -> dict[str, int]:
        """Return the source's defines."""
        unit = {"CLUSTER": CLUSTER_BLOCKS, "UNIT_TILES": self.unit_tiles, "ROW_TILES": WARP_TILES}
        held = {"HELD_ROWS": self.held_rows, "HELD_GROUPS": self.held_groups}
        return {**unit, "TILES": self.tiles, **held, "STAGES": self.stages}

    def units(self, outputs: Sequence[int]) -> int:
        """Return the units of a product."""
        return sum(-(-count // (TILE_OUTPUTS * self.unit_tiles)) for count in outputs)

    def rounds(self, outputs: Sequence[int], clusters: int) -> int:
        """Return how many units the busiest of the clusters takes."""
        return -(-self.units(outputs) // clusters)


def prefers_clusters(kind: MatrixKind, rows: int) -> bool:
    """Whether `matmul_cluster` is the faster program for up to `rows` rows of a kind: where what it copies limits it
    and not what it computes, or where a k-quant has more rows than `matmul_few` is good for.
    """
    if kind.is_factored:
        return rows > MOST_FEW_ROWS
    return kind.code_bits == 8 and not kind.has_minimum


def cluster_cut(
    kind: MatrixKind, outputs: Sequence[int], inputs: int, rows: int, *, sm_count: int, shared_bytes: int
) -> ClusterCut | None:
    """Return the cut for up to `rows` rows; None where another program takes them, as it does where the last units
    would leave many clusters idle. Units have the outputs that leave the busiest cluster the least; large ones are
    slower for more than a few rows of kinds whose groups are not one chain.
    """
    if rows > MOST_ROWS:
        return None
    clusters = sm_count // CLUSTER_BLOCKS
    sizes = UNIT_TILES if kind.has_group_chains or rows <= MOST_LARGE_ROWS else UNIT_TILES[:1]
    cuts = [cut for size in sizes if (cut := _cluster_cut(kind, size, inputs, rows, shared_bytes)) is not None]
    best = min(cuts, key=lambda cut: cut.unit_tiles * cut.rounds(outputs, clusters), default=None)
    if best is None:
        return None
    busy = best.units(outputs) / (clusters * best.rounds(outputs, clusters))
    return best if busy >= LEAST_BUSY[best.tiles] else None


def _cluster_cut(kind: MatrixKind, unit_tiles: int, inputs: int, rows: int, shared_bytes: int) -> ClusterCut | None:
    """Return the cut with the deepest ring that fits. Activations of a group's chain stay where there is room for all
    of them and a ring that is deep enough; where codes take as many bytes the ring is worth more. Up to 8 rows of them
    that do not stay are another program's.
    """
    tiles, own_slices = -(-rows // 8), SLICES // CLUSTER_BLOCKS
    weight_bytes = own_slices * unit_tiles * kind.group_bytes
    held_rows = next((held for held in HELD_ROWS if rows <= held), HELD_ROWS[-1])
    column_bytes = (
        own_slices * GROUP_BLOCKS * tiles * (kind.planes * held_rows * PLANE_ROW_BYTES + kind.has_minimum * 64)
    )
    sums_bytes = unit_tiles // CLUSTER_BLOCKS * SLICES * tiles * FRAGMENT_BYTES
    groups = -(-inputs // (SLICES * GROUP_BLOCKS * BLOCK_INPUTS))
    stages = min(MOST_STAGES, (shared_bytes - sums_bytes - groups * column_bytes) // weight_bytes)
    if kind.has_group_chains and stages >= FEWEST_STAGES_BESIDE_HELD:
        taken = sums_bytes + groups * column_bytes + stages * weight_bytes
        return ClusterCut(unit_tiles, tiles, held_rows, groups, stages, taken)
    if kind.has_group_chains and tiles == 1:
        return None
    slot_bytes = weight_bytes + column_bytes
    stages = min(MOST_STAGES, (shared_bytes - sums_bytes) // slot_bytes)
    cut = ClusterCut(unit_tiles, tiles, held_rows, 0, stages, sums_bytes + stages * slot_bytes)
    return cut if stages >= FEWEST_STAGES else None
