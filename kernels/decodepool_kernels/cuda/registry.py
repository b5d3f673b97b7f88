"""Every kernel, a row each: its source, the defines it is compiled with, its reference, what it is exact against.

A test compiles every variant without a GPU, another holds each row to its reference on one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from decodepool_sizing.layouts import QUANT_LAYOUTS

from decodepool_kernels.cuda.formats import REPACKED, repack_defines
from decodepool_kernels.cuda.packing import BF16_KIND, F16_KIND, quant_kind

HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)
WIDE_HEAD_DIMS = (64, 128)
TILES = (1, 2)
ROW_TILES = (1, 4, 2)
KINDS = tuple(dict.fromkeys([*(quant_kind(layout) for layout in QUANT_LAYOUTS.values()), F16_KIND, BF16_KIND]))
"""Every way of keeping a tensor-core matrix, once."""


@dataclass(frozen=True)
class Kernel:
    """`variants` maps each define to the values it takes; `reference` is the formula that tests hold it to, in f64.
    `only` is the target that a kernel is for, where it is not for every one; some are for matrices with factored scales
    alone.
    """

    source: str
    reference: str
    exact_against: str
    variants: Mapping[str, tuple[int, ...]]
    has_kinds: bool = False
    has_formats: bool = False
    is_for_factored: bool = False
    only: str | None = None

    @property
    def entry(self) -> str:
        """The function's name in the source."""
        return self.source.removesuffix(".cu")

    def every_variant(self) -> Iterator[dict[str, int]]:
        """Yield the defines of every variant."""
        for kind, values in product(self._kinds(), product(*self.variants.values())):
            yield {**kind, **dict(zip(self.variants, values, strict=True))}

    def each_value(self) -> Iterator[dict[str, int]]:
        """Yield as few variants as show every kind and every value of every define, each beside the others' last."""
        last = {name: values[-1] for name, values in self.variants.items()}
        kinds = self._kinds()
        yield from ({**kind, **last} for kind in kinds)
        for name, values in self.variants.items():
            yield from ({**kinds[0], **last, name: value} for value in values[:-1])

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
STAGES = {"STAGES": (3,)}
WIDE_CUTS = {"TILES": (4, 8), "SPLIT": (0, 1), "STAGES": (2,)}
WARPGROUP_STAGES = {"WEIGHT_STAGES": (2,), "COLUMN_STAGES": (2,), "COLUMN_BLOCKS": (4, 2, 1)}
WARPGROUP_CUTS = {"TILES": (16, 3, 4, 6, 8), "HALF": (0, 1), "SPLIT": (0, 1), **WARPGROUP_STAGES}
PAGES = {"KV_BITS": (8, 16)}
FOLD_SWITCHES = {"WINDOW": (1, 0), "SINKS": (1, 0)}
SWITCHES = {**FOLD_SWITCHES, "SOFT_CAP": (1, 0)}
FOLDED_HEADS = {"HEADS": (2, 9, 32), "HEAD_DIM": HEAD_DIMS, **FOLD_SWITCHES}
FOLDS = {**ACTIVATIONS, "GROUPS": (1, 8, 4), "ITEMS": (2, 1), **FOLDED_HEADS}
DEALS = {"CLAIMED": (0, 1), "SPENT": (1, 0)}
ATTENTION = {"HEAD_DIM": HEAD_DIMS, **PAGES, "BLOCKS": (2, 3, 4), **STAGES, **DEALS, **SWITCHES}
WIDE_ATTENTION = {"HEAD_DIM": WIDE_HEAD_DIMS, **PAGES, **STAGES, **SWITCHES}
APART = {"APART": (0, 1)}
FEW_ROWS = {"MOST_ROWS": (8, 4, 2, 1), "COLUMNS": (2, 64)}
FEW_CUTS = {**FEW_ROWS, "ROW_TILES": (2, 1), "TEAMS": (3, 2, 1), "BESIDE": (0, 1), "STAGES": (2,)}
CLUSTER_UNITS = {"CLUSTER": (2,), "UNIT_TILES": (6, 4), "ROW_TILES": (2,)}
CLUSTER_ROWS = {"TILES": (1, 2), "HELD_ROWS": (2, 4, 8)}
CLUSTER_CUTS = {**CLUSTER_UNITS, **CLUSTER_ROWS, "HELD_GROUPS": (4, 0), **STAGES}
CUTS = {"TILES": TILES, "ROW_TILES": ROW_TILES, **STAGES}

KERNELS: dict[str, Kernel] = {
    kernel.entry: kernel
    for kernel in (
        Kernel("embed.cu", "row of the dequantised matrix", "itself at any width", {}, has_kinds=True),
        Kernel("embed_f32.cu", "row of the matrix, to the bit", "itself at any width", {}),
        Kernel("rms_norm.cu", "x / sqrt(mean(x^2) + eps) * w", "itself at any width", HELD),
        Kernel("quantise.cu", "x, from its planes", "itself at any width", PLANES),
        Kernel(
            "norm_quantise.cu", "the norm of a + b, from its planes", "fold_slices, add, rms_norm, quantise",
            {**PLANES, **APART, "EARLY": (0, 1)},
        ),
        Kernel("swiglu_quantise.cu", "silu(g) u, from its planes", "swiglu, quantise", PLANES),
        Kernel("matmul.cu", "W x + b of the dequantised matrix", "every define, parts and width", CUTS, has_kinds=True),
        Kernel(
            "matmul_few.cu", "W x + b of the dequantised matrix", "matmul", FEW_CUTS,
            has_kinds=True, is_for_factored=True, only=HOPPER,
        ),
        Kernel(
            "matmul_cluster.cu", "W x + b of the dequantised matrix", "matmul", CLUSTER_CUTS,
            has_kinds=True, only=HOPPER,
        ),
        Kernel("matmul_wide.cu", "W x + b of the dequantised matrix", "matmul", WIDE_CUTS, has_kinds=True),
        Kernel(
            "matmul_warpgroup.cu", "W x + b of the dequantised matrix", "matmul", WARPGROUP_CUTS,
            has_kinds=True, only=HOPPER,
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
        Kernel("attention.cu", "softmax(scale q K') V", "any cut and width", ATTENTION),
        Kernel("attention_wide.cu", "softmax(scale q K') V", "attention", WIDE_ATTENTION, only=HOPPER),
        Kernel("attention_fold.cu", "softmax(scale q K') V", "attention of whole rows", FOLDED_HEADS),
        Kernel("fold_quantise.cu", "softmax(scale q K') V, from its planes", "attention_fold, quantise", FOLDS),
        Kernel(
            "fold_cluster.cu", "softmax(scale q K') V, from its planes", "fold_quantise",
            {**FOLDS, "CORES": (0,)}, only=HOPPER,
        ),
        Kernel("swiglu.cu", "silu(g) u", "itself at any width", {}),
        Kernel("add.cu", "a + b, to the bit", "itself at any width", {}),
        Kernel("gather.cu", "the rows wanted, to the bit", "itself at any width", {}),
        Kernel("repack.cu", "packing, to the byte", "itself in any slices", {}, has_formats=True),
        Kernel("read_words.cu", "exclusive or of the words, to the bit", "itself on any grid", {}),
        Kernel("draw.cu", "draw_as_device, to the bit", "draw_cluster", {"ITEMS": (1, 126)}),
        Kernel("draw_cluster.cu", "draw_as_device, to the bit", "draw", {"ITEMS": (1, 16, 32)}, only=HOPPER),
        Kernel("argmax.cu", "numpy's argmax, to the bit", "itself at any width", {}),
    )
}  # fmt: skip
