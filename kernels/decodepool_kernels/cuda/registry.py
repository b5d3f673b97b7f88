"""Every kernel, a row each: its source, the defines it is compiled with, its reference, what it is exact against.

A test compiles every value of every define without a GPU, others hold each row to its reference on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from decodepool_sizing.layouts import QUANT_LAYOUTS

from decodepool_kernels.cuda.cluster_cuts import MOST_LARGE_ROWS, UNIT_TILES
from decodepool_kernels.cuda.formats import REPACKED, repack_defines
from decodepool_kernels.cuda.grids import slice_held, slice_threads
from decodepool_kernels.cuda.packing import BF16_KIND, F16_KIND, HALF_SUMS, NO_SUMS, quant_kind
from decodepool_kernels.cuda.products import FEW_ROWS, MOST_TEAMS, ROW_TILES, TALL_TILES
from decodepool_kernels.cuda.records import HELD_COLUMNS

HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)
WIDE_HEAD_DIMS = (64, 128)
KINDS = tuple(dict.fromkeys([*(quant_kind(layout) for layout in QUANT_LAYOUTS.values()), F16_KIND, BF16_KIND]))
"""Every way of keeping a tensor-core matrix, once."""
Defines = Mapping[str, int]


def _are_activations(defines: Defines) -> bool:
    """Whether sums stand beside planes that can have them."""
    return defines["PLANES"] == 2 or defines["SUMS"] == NO_SUMS


def _is_norm(defines: Defines) -> bool:
    """Whether so few rows as start their product at once have neither wgmma nor slices that were left apart."""
    return _are_activations(defines) and not (defines["EARLY"] and (defines["CORES"] or defines["APART"]))


def _is_product_cut(defines: Defines) -> bool:
    """Whether 8 rows take the fewest outputs of those preferred, and 16 outputs are of weights that take most room."""
    if defines["ROW_TILES"] < ROW_TILES[-1]:
        return defines["CODE_BITS"] == 16
    return defines["TILES"] > 1 or defines["ROW_TILES"] == ROW_TILES[-1]


def _is_few_cut(defines: Defines) -> bool:
    """Whether 8 rows are of 4-bit codes, and a tile a warp; others are not so many outputs as make three teams."""
    rows = defines["MOST_ROWS"]
    if defines["COLUMNS"] != max(rows, HELD_COLUMNS[0]):
        return False
    if rows == FEW_ROWS[-1]:
        return defines["CODE_BITS"] == 4 and defines["ROW_TILES"] == 1
    return defines["TEAMS"] <= MOST_TEAMS[2]


def _is_cluster_cut(defines: Defines) -> bool:
    """Whether a chain's activations stay, but those of two tiles of rows may not; other kinds' never do, and have large
    units for a few rows.
    """
    if defines["TILES"] > 1 and defines["HELD_ROWS"] < 8:
        return False
    if defines["GROUP_CHAINS"]:
        return bool(defines["HELD_GROUPS"]) or defines["TILES"] > 1
    is_small = defines["UNIT_TILES"] == UNIT_TILES[0] or defines["HELD_ROWS"] <= MOST_LARGE_ROWS
    return bool(is_small or defines["BESIDE"]) and not defines["HELD_GROUPS"]


def _is_warpgroup_cut(defines: Defines) -> bool:
    """Whether units are of 256 outputs, tall, or halves of slices left apart, with the largest stages of activations
    that such units have, or smaller ones beside 16-bit weights.
    """
    if defines["BESIDE"] and not defines["SPLIT"]:
        return False
    if defines["TILES"] == TALL_TILES:
        is_tall = defines["CODE_BITS"] < 16 and defines["SUMS"] != HALF_SUMS
        return is_tall and bool(defines["HALF"]) and defines["COLUMN_BLOCKS"] == 1
    if defines["HALF"] and not defines["SPLIT"]:
        return False
    most = 4 if defines["TILES"] <= 4 or defines["SPLIT"] or defines["GROUP_CHAINS"] else 2
    return defines["COLUMN_BLOCKS"] == most or (defines["CODE_BITS"] == 16 and defines["COLUMN_BLOCKS"] < most)


def _is_narrow_cut(defines: Defines) -> bool:
    """Whether teams have an SM to themselves, in steps of too few rows to claim units or leave slices apart."""
    if defines["TEAMS"] > 1:
        return defines["BLOCKS"] == 1 and not defines["CLAIMED"] and not defines["SPENT"]
    return defines["BLOCKS"] > 1


def _is_fold(defines: Defines) -> bool:
    """Whether a slice's warps, and what each holds, are those of its heads."""
    width = defines["HEADS"] * defines["HEAD_DIM"]
    warps = slice_threads(width) // 32
    return _are_activations(defines) and (defines["GROUPS"], defines["ITEMS"]) == (warps, slice_held(width)["ITEMS"])


@dataclass(frozen=True)
class Kernel:
    """`variants` maps each define to the values it takes; `reference` is the formula that tests hold it to, in f64, and
    `exact_against` what has the same bits.
    `only` is the target that a kernel is for, where it is not for every one; some are for matrices with factored scales
    alone. `is_made` tells which combinations a step can ask for, where not all.
    """

    source: str
    reference: str
    exact_against: str
    variants: Mapping[str, tuple[int, ...]]
    has_kinds: bool = False
    has_formats: bool = False
    is_for_factored: bool = False
    only: str | None = None
    is_made: Callable[[Defines], bool] = lambda _: True

    @property
    def entry(self) -> str:
        """The function's name in the source."""
        return self.source.removesuffix(".cu")

    @property
    def twins(self) -> tuple[str, ...]:
        """The kernels that this one is exact against; none where that is itself, cut otherwise."""
        names = self.exact_against.split(", ")
        return tuple(names) if all(name.isidentifier() for name in names) else ()

    def every_variant(self) -> Iterator[dict[str, int]]:
        """Yield the defines of every variant."""
        for kind, values in product(self._kinds(), product(*self.variants.values())):
            defines = {**kind, **dict(zip(self.variants, values, strict=True))}
            if self.is_made(defines):
                yield defines

    def each_value(self) -> Iterator[dict[str, int]]:
        """Yield a variant for every kind and every value of every define that none before has, each beside values of
        the others as near their last as may be.
        """
        seen: set[tuple[object, ...]] = set()
        for defines in reversed(list(self.every_variant())):
            kind = tuple((name, value) for name, value in defines.items() if name not in self.variants)
            shown = {kind, *((name, defines[name]) for name in self.variants)}
            if not shown <= seen:
                seen |= shown
                yield defines

    def _kinds(self) -> list[dict[str, int]]:
        if self.has_formats:
            return [repack_defines(kind) for kind in REPACKED]
        kinds = [kind for kind in KINDS if kind.is_factored or not self.is_for_factored]
        return [kind.defines() for kind in kinds] if self.has_kinds else [{}]


HOPPER = "sm_90a"
"""Compute capability 9.0 with what only it has: products of whole warpgroups, registers given from warp to warp."""
HELD = {"ITEMS": (1, 4, 8, 14)}
ACTIVATIONS = {"PLANES": (3, 2), "SUMS": (0, 1, 2), "CORES": (0, 1)}
PLANES = {**ACTIVATIONS, **HELD}
NORMED, GATED = {"WIDTH": (96, 2880, 8192, 4096)}, {"WIDTH": (96, 11008, 28672, 14336)}
STAGES = {"STAGES": (3,)}
WIDE_CUTS = {"TILES": (4, 8), "SPLIT": (0, 1), "STAGES": (2,)}
WARPGROUP_STAGES = {"WEIGHT_STAGES": (2,), "COLUMN_STAGES": (2,), "COLUMN_BLOCKS": (4, 2, 1)}
WARPGROUP_CUTS = {"TILES": (16, 3, 4, 6, 8), "HALF": (0, 1), "SPLIT": (0, 1), "BESIDE": (0, 1), **WARPGROUP_STAGES}
PAGES = {"KV_BITS": (8, 16)}
FOLD_SWITCHES = {"WINDOW": (1, 0), "SINKS": (1, 0)}
SWITCHES = {**FOLD_SWITCHES, "SOFT_CAP": (1, 0)}
FOLDED_HEADS = {"HEADS": (2, 9, 128, 32), "HEAD_DIM": HEAD_DIMS, **FOLD_SWITCHES}
FOLDS = {**ACTIVATIONS, "GROUPS": (1, 2, 3, 8, 4), "ITEMS": (4, 2, 1), **FOLDED_HEADS}
DEALS = {"CLAIMED": (0, 1), "SPENT": (1, 0)}
NARROW_CUTS = {"TEAMS": (2, 1), "BLOCKS": (1, 2, 3, 4), "STAGES": (4,)}
ATTENTION = {"HEAD_DIM": HEAD_DIMS, **PAGES, **NARROW_CUTS, **DEALS, **SWITCHES}
WIDE_ATTENTION = {"HEAD_DIM": WIDE_HEAD_DIMS, **PAGES, **STAGES, **SWITCHES}
APART = {"APART": (0, 1)}
FEW_COLUMNS = {"MOST_ROWS": (8, 4, 2, 1), "COLUMNS": (8, 4, 2)}
FEW_CUTS = {**FEW_COLUMNS, "ROW_TILES": (2, 1), "TEAMS": (3, 2, 1), "BESIDE": (0, 1), "STAGES": (2,)}
CLUSTER_UNITS = {"CLUSTER": (2,), "UNIT_TILES": (6, 4), "ROW_TILES": (2,)}
CLUSTER_ROWS = {"TILES": (1, 2), "HELD_ROWS": (2, 4, 8)}
CLUSTER_PLACES = {"BESIDE": (1, 0), "LEADS": (1, 0)}
CLUSTER_CUTS = {**CLUSTER_UNITS, **CLUSTER_ROWS, "HELD_GROUPS": (4, 0), **STAGES, **CLUSTER_PLACES}
CUTS = {"TILES": (1, 2), "ROW_TILES": (1, 4, 2), **STAGES}

KERNELS: dict[str, Kernel] = {
    kernel.entry: kernel
    for kernel in (
        Kernel("embed.cu", "row of the dequantised matrix", "itself at any width", {}, has_kinds=True),
        Kernel("embed_f32.cu", "row of the matrix, to the bit", "itself at any width", {}),
        Kernel("rms_norm.cu", "x / sqrt(mean(x^2) + eps) * w", "itself at any width", HELD),
        Kernel("quantise.cu", "x, from its planes", "itself at any width", PLANES, is_made=_are_activations),
        Kernel(
            "norm_quantise.cu", "the norm of a + b, from its planes", "fold_slices, add, rms_norm, quantise",
            {**ACTIVATIONS, **NORMED, **APART, "EARLY": (0, 1)}, is_made=_is_norm,
        ),
        Kernel(
            "swiglu_quantise.cu", "silu(g) u, from its planes", "swiglu, quantise",
            {**ACTIVATIONS, **GATED}, is_made=_are_activations,
        ),
        Kernel(
            "matmul.cu", "W x + b of the dequantised matrix", "every define, parts and width", CUTS,
            has_kinds=True, is_made=_is_product_cut,
        ),
        Kernel(
            "matmul_few.cu", "W x + b of the dequantised matrix", "matmul", FEW_CUTS,
            has_kinds=True, is_for_factored=True, only=HOPPER, is_made=_is_few_cut,
        ),
        Kernel(
            "matmul_cluster.cu", "W x + b of the dequantised matrix", "matmul", CLUSTER_CUTS,
            has_kinds=True, only=HOPPER, is_made=_is_cluster_cut,
        ),
        Kernel("matmul_wide.cu", "W x + b of the dequantised matrix", "matmul", WIDE_CUTS, has_kinds=True),
        Kernel(
            "matmul_warpgroup.cu", "W x + b of the dequantised matrix", "matmul", WARPGROUP_CUTS,
            has_kinds=True, only=HOPPER, is_made=_is_warpgroup_cut,
        ),
        Kernel("fold_slices.cu", "W x + b, from the sums of slices", "products of whole units", {"PLANES": (2, 3)}),
        Kernel("matmul_f32.cu", "W x + b", "itself at any width", {}),
        Kernel("rope_table.cu", "cos and sin of position * frequency", "itself at any width", {}),
        Kernel("rope.cu", "each pair turned by its angle", "itself at any width", {}),
        Kernel(
            "rope_append.cu", "each pair turned; f16 of the turned k and of v", "fold_slices, rope, append",
            {**PAGES, **APART, "EACH": (4, 1)},
        ),
        Kernel("append.cu", "x at its place in its page, to the bit", "itself at any width", PAGES),
        Kernel("attention.cu", "softmax(scale q K') V", "any cut and width", ATTENTION, is_made=_is_narrow_cut),
        Kernel("attention_wide.cu", "softmax(scale q K') V", "attention", WIDE_ATTENTION, only=HOPPER),
        Kernel("attention_fold.cu", "softmax(scale q K') V", "attention of whole rows", FOLDED_HEADS),
        Kernel(
            "fold_quantise.cu", "softmax(scale q K') V, from its planes", "attention_fold, quantise",
            FOLDS, is_made=_is_fold,
        ),
        Kernel(
            "fold_cluster.cu", "softmax(scale q K') V, from its planes", "fold_quantise",
            {**FOLDS, "CORES": (0,)}, only=HOPPER, is_made=_is_fold,
        ),
        Kernel("swiglu.cu", "silu(g) u", "itself at any width", {}),
        Kernel("add.cu", "a + b, to the bit", "itself at any width", {}),
        Kernel("gather.cu", "the rows wanted, to the bit", "itself at any width", {}),
        Kernel("repack.cu", "packing, to the byte", "itself in any slices", {}, has_formats=True),
        Kernel("read_words.cu", "exclusive or of the words, to the bit", "itself on any grid", {}),
        Kernel("draw.cu", "draw_as_device, to the bit", "draw_cluster", {"ITEMS": (1, 126)}),
        Kernel("draw_cluster.cu", "draw_as_device, to the bit", "draw", {"ITEMS": (1, 16, 32)}, only=HOPPER),
        Kernel("bring.cu", "the words brought, to the bit", "itself for any parts", {}),
        Kernel("argmax.cu", "numpy's argmax", "itself at any width", {}),
        Kernel("argmax_cluster.cu", "numpy's argmax", "argmax", {"BLOCKS": (8, 4)}, only=HOPPER),
    )
}  # fmt: skip
