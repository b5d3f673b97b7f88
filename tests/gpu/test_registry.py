"""The registry's variants of products are those that cuts make; of 16-bit weights there are more, since what cuts make
of them depends on the room that they leave. No GPU needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import get_args

import pytest
from decodepool_kernels import graph
from decodepool_kernels.cuda.cluster_cuts import cluster_cut
from decodepool_kernels.cuda.lower import Lowering
from decodepool_kernels.cuda.packing import MatrixKind
from decodepool_kernels.cuda.products import few_cut, product_cut, warpgroup_cut, wide_cut
from decodepool_kernels.cuda.records import Columns
from decodepool_kernels.cuda.registry import HOPPER, KERNELS, KINDS

OUTPUTS = ([137], [1024], [4096], [5120], [6144], [28672], [128256])
INPUTS = (*range(512, 16385, 512), 20480, 24576, 28672, 32768, 40960)
FEW_ROWS, WIDE_ROWS = (1, 2, 4, 8, 16), (24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SM_COUNTS = (132, 48)
"""Of an H200, and what a product beside another has of it."""
HOPPER_BYTES, SHARED_BYTES = (228352,), (228352, 162816, 97280)
"""For a block's ring, of the GPU that some programs are for, and of others."""
DEPTHS = frozenset({"STAGES", "WEIGHT_STAGES", "COLUMN_STAGES"})
"""Of rings, which are as deep as there is room for: the registry has one of each."""

Cut = Mapping[str, int]


def product_cuts(kind: MatrixKind, sm_count: int, shared_bytes: int) -> Iterator[Cut]:
    for outputs, rows in product(OUTPUTS, FEW_ROWS):
        yield product_cut(kind, outputs, rows, sm_count=sm_count, shared_bytes=shared_bytes).defines()


def few_cuts(kind: MatrixKind, sm_count: int, shared_bytes: int) -> Iterator[Cut]:
    for outputs, inputs, rows in product(OUTPUTS, INPUTS, FEW_ROWS):
        cut = few_cut(kind, outputs, inputs, rows, sm_count=sm_count, shared_bytes=shared_bytes)
        for beside in (0, 1) if cut else ():
            assert cut is not None
            yield {**cut.defines(), "COLUMNS": Columns(512).of(rows), "BESIDE": beside}


def cluster_cuts(kind: MatrixKind, sm_count: int, shared_bytes: int) -> Iterator[Cut]:
    for outputs, inputs, rows, beside in product(OUTPUTS, INPUTS, FEW_ROWS, (0, 1)):
        room = {"sm_count": sm_count, "shared_bytes": shared_bytes}
        cut = cluster_cut(kind, outputs, inputs, rows, **room, is_beside=bool(beside))
        for leads in (0, 1) if cut else ():
            assert cut is not None
            yield {**cut.defines(), "BESIDE": beside, "LEADS": leads}


def wide_cuts(kind: MatrixKind, sm_count: int, shared_bytes: int) -> Iterator[Cut]:
    for outputs, rows in product(OUTPUTS, WIDE_ROWS):
        cut = wide_cut(kind, outputs, rows, sm_count, shared_bytes)
        if cut is not None:
            yield cut.defines()


def warpgroup_cuts(kind: MatrixKind, sm_count: int, shared_bytes: int) -> Iterator[Cut]:
    for outputs, rows, is_full in product(OUTPUTS, WIDE_ROWS, (True, False)):
        cut = warpgroup_cut(kind, outputs, rows, sm_count, shared_bytes, is_full=is_full)
        for beside in (0, 1) if cut and cut.split else (0,) if cut else ():
            assert cut is not None
            yield {**cut.defines(), "BESIDE": beside}


CUTS = {
    "matmul": product_cuts,
    "matmul_few": few_cuts,
    "matmul_cluster": cluster_cuts,
    "matmul_wide": wide_cuts,
    "matmul_warpgroup": warpgroup_cuts,
}


def compared(defines: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    """Return defines without how deep rings are, and of held groups whether there are any."""
    return frozenset(
        (name, int(value > 0) if name == "HELD_GROUPS" else value)
        for name, value in defines.items()
        if name not in DEPTHS
    )


@pytest.mark.parametrize("name", CUTS)
def test_the_variants_of_a_product_are_those_that_cuts_make(name: str) -> None:
    sizes = HOPPER_BYTES if KERNELS[name].only == HOPPER else SHARED_BYTES
    made = {
        compared({**kind.defines(), **cut})
        for kind, sm_count, shared_bytes in product(KINDS, SM_COUNTS, sizes)
        for cut in CUTS[name](kind, sm_count, shared_bytes)
    }
    listed = {compared(defines) for defines in KERNELS[name].every_variant()}
    assert made <= listed
    assert {variant for variant in listed - made if ("CODE_BITS", 16) not in variant} == set()


def test_so_few_variants_show_every_value() -> None:
    for kernel in KERNELS.values():
        every, few = list(kernel.every_variant()), list(kernel.each_value())
        shown = {(name, defines[name]) for defines in every for name in kernel.variants}
        assert {(name, defines[name]) for defines in few for name in kernel.variants} == shown
        assert shown == {(name, value) for name, values in kernel.variants.items() for value in values}
        assert len(few) < 25


OF_NO_OTHER = frozenset({
    "itself at any width", "itself in any slices", "itself on any grid", "itself for any parts", "any cut and width",
    "every define, parts and width", "attention of whole rows", "products of whole units",
})  # fmt: skip
"""What kernels are exact against that no other kernel computes."""


def test_kernels_are_exact_against_themselves_or_kernels_that_there_are() -> None:
    named = {name for kernel in KERNELS.values() for name in kernel.twins}
    assert named <= set(KERNELS)
    assert {kernel.exact_against for kernel in KERNELS.values() if not kernel.twins} == OF_NO_OTHER


def test_a_kernel_for_one_target_is_exact_against_one_for_every_gpu() -> None:
    for kernel in KERNELS.values():
        if kernel.only is not None:
            assert [KERNELS[twin].only for twin in kernel.twins] == [None], kernel.entry


@pytest.mark.parametrize(
    "operation",
    [each for each in get_args(graph.Operation) if each is not graph.MatMul],
    ids=lambda each: each.__name__,
)
def test_every_operation_is_lowered_by_a_method_of_its_name(operation: type) -> None:
    """But products, which are lowered together."""
    assert callable(getattr(Lowering, f"_{operation.__name__.lower()}", None))
