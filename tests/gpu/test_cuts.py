"""How work is cut for a GPU: plain arithmetic, no GPU needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from decodepool_kernels.cuda.attention_programs import (
    ATTENTION_STATIC_BYTES,
    QUERY_PADDING,
    QUERY_SLOTS,
    narrow_ring,
    wide_ring,
)
from decodepool_kernels.cuda.cluster_cuts import cluster_cut
from decodepool_kernels.cuda.draws import MOST_TOKENS
from decodepool_kernels.cuda.errors import CannotCompile
from decodepool_kernels.cuda.inputs import COLUMNS, AttentionCut, StepInputs, StepLimits
from decodepool_kernels.cuda.packing import F16_KIND, MatrixKind, quant_kind
from decodepool_kernels.cuda.pages import KV_BITS
from decodepool_kernels.cuda.products import (
    few_cut,
    product_cut,
    warpgroup_cut,
    wide_cut,
)
from decodepool_kernels.cuda.records import Columns
from decodepool_kernels.cuda.registry import HEAD_DIMS, KINDS, WIDE_HEAD_DIMS
from decodepool_sizing.kv import KVType
from decodepool_sizing.layouts import QUANT_LAYOUTS
from decodepool_sizing.support import GPU_VOCABULARY, attention_shared_bytes
from numpy.typing import NDArray

H200, A100, L40S = 228352, 162816, 97280
"""Shared memory for a block's ring, in bytes."""
EIGHT_BITS = MatrixKind(8, 32, has_minimum=False, scale_bytes=2)
FOUR_BITS = quant_kind(QUANT_LAYOUTS["Q4_K"])


@pytest.mark.parametrize("rows", [1, 8, 16, 24, 64, 512])
@pytest.mark.parametrize("shared_bytes", [H200, A100, L40S])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_matrix_has_a_cut_that_fits(kind: MatrixKind, shared_bytes: int, rows: int) -> None:
    wide = wide_cut(kind, [4096], rows, 108, shared_bytes)
    assert product_cut(kind, [4096], rows, sm_count=108, shared_bytes=shared_bytes).shared_bytes <= shared_bytes
    assert wide is None or wide.shared_bytes <= shared_bytes


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("kv_bits", KV_BITS.values())
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_attentions_rings_fit_beside_each_other(head_dim: int, kv_bits: int, crowded: bool) -> None:
    """An SM of an H200 has 228 KB, of which each thread block loses 1."""
    narrow = narrow_ring(head_dim, kv_bits, 227 << 10, crowded=crowded)
    assert narrow.blocks >= (3 if crowded and head_dim < max(HEAD_DIMS) else 2)
    queries = 2 * 8 * 4 * (head_dim + 16)
    blocks = narrow.blocks if head_dim < max(HEAD_DIMS) or kv_bits == KV_BITS["q8_0"] else 1
    assert blocks * (narrow.shared_bytes + queries + (5 << 10)) <= 228 << 10
    if head_dim in WIDE_HEAD_DIMS:
        wide = wide_ring(head_dim, kv_bits, 227 << 10)
        assert wide.stages >= 4
        assert wide.shared_bytes <= 223 << 10


@pytest.mark.parametrize(
    ("head_dim", "kv_type"),
    [(dim, kv_type) for dim in HEAD_DIMS for kv_type in (KVType.F16, KVType.Q8_0) if kv_type.can_hold(dim)],
)
def test_the_plan_knows_the_least_that_attention_shares(head_dim: int, kv_type: KVType) -> None:
    least = narrow_ring(head_dim, KV_BITS[kv_type.value], 0).shared_bytes + QUERY_SLOTS * COLUMNS * 4 * (
        head_dim + QUERY_PADDING
    )
    assert least < attention_shared_bytes(head_dim, kv_type, "9.0") <= least + ATTENTION_STATIC_BYTES


def test_the_plan_knows_the_largest_vocabulary() -> None:
    assert GPU_VOCABULARY == MOST_TOKENS


@pytest.mark.parametrize("shared_bytes", [H200, 99 << 10])
@pytest.mark.parametrize("kv_bits", KV_BITS.values())
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_a_ring_that_teams_share_fits_an_sm_and_a_slot_is_always_the_same_teams(
    head_dim: int, kv_bits: int, shared_bytes: int
) -> None:
    ring = narrow_ring(head_dim, kv_bits, shared_bytes, shared=True)
    if ring.teams == 1:
        assert shared_bytes < H200
        assert ring == narrow_ring(head_dim, kv_bits, shared_bytes)
        return
    own_bytes = 2 * 8 * 4 * (head_dim + 16) + 2 * 2048 * (1 + -(-head_dim // 64)) + (5 << 10)
    assert (ring.blocks, ring.teams) == (1, 2)
    assert ring.stages % 4 == 0
    assert ring.shared_bytes + own_bytes <= shared_bytes


@pytest.mark.parametrize("outputs", [137, 4096, 28672, 128256])
@pytest.mark.parametrize("rows", [24, 32, 48, 64, 96, 128, 192, 256, 384, 512])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_matrix_has_a_cut_for_warpgroups(kind: MatrixKind, rows: int, outputs: int) -> None:
    cut = warpgroup_cut(kind, [outputs], rows, 132, H200)
    assert cut is not None
    assert cut.shared_bytes <= H200
    assert 8 * cut.tiles * -(-rows // (8 * cut.tiles)) < rows + 64


@pytest.mark.parametrize("inputs", [96, 4096, 14336])
@pytest.mark.parametrize("outputs", [[137], [4096], [14336, 14336]], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_few_rows_of_a_k_quant_have_a_cut_where_their_activations_fit(
    kind: MatrixKind, rows: int, outputs: list[int], inputs: int
) -> None:
    cut = few_cut(kind, outputs, inputs, rows, sm_count=132, shared_bytes=H200)
    has_many = kind.code_bits == 4 and sum(outputs) > 3 * 132 * 16
    most_rows = 2 if inputs == 14336 else 8 if has_many else 4
    assert (cut is not None) == (kind.is_factored and rows <= most_rows)
    assert cut is None or cut.shared_bytes <= H200


@pytest.mark.parametrize(
    ("outputs", "row_tiles", "blocks"),
    [([1024], 1, 64), ([4096], 1, 128), ([4096, 1024], 2, 80), ([4096, 1024, 1024], 2, 96), ([28672], 2, 132)],
    ids=str,
)
def test_few_rows_take_two_tiles_where_teams_are_fewer_than_tiles_and_no_more_sms_than_they_fill(
    outputs: list[int], row_tiles: int, blocks: int
) -> None:
    cut = few_cut(FOUR_BITS, outputs, 4096, 1, sm_count=132, shared_bytes=H200)
    assert cut is not None
    assert (cut.row_tiles, cut.blocks(outputs, 132)) == (row_tiles, blocks)


@pytest.mark.parametrize("inputs", [96, 4096, 14336])
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_up_to_two_tiles_of_rows_have_a_cut_for_clusters_that_fits(kind: MatrixKind, rows: int, inputs: int) -> None:
    cut = cluster_cut(kind, [4096], inputs, rows, sm_count=132, shared_bytes=H200)
    is_slow = kind.has_group_chains and 4 < rows <= 8 and inputs == 14336
    assert (cut is not None) == (rows <= 16 and not (kind.is_bfloat and rows > 8) and not is_slow)
    assert cut is None or cut.shared_bytes <= H200


@pytest.mark.parametrize(("rows", "unit_tiles"), [(1, 6), (4, 6), (8, None), (16, 4)])
def test_rows_of_8_bits_have_a_cut_for_clusters_where_it_leaves_few_of_them_idle(
    rows: int, unit_tiles: int | None
) -> None:
    cut = cluster_cut(EIGHT_BITS, [4096, 1024, 1024], 4096, rows, sm_count=132, shared_bytes=H200)
    assert (cut.unit_tiles if cut else None) == unit_tiles


@pytest.mark.parametrize(
    ("most", "rows", "columns"), [(512, 1, 2), (512, 3, 4), (512, 8, 8), (512, 16, 16), (512, 17, 512), (64, 64, 64)]
)
def test_activations_of_a_small_step_have_room_for_its_rows_alone(most: int, rows: int, columns: int) -> None:
    assert Columns(most).of(rows) == columns


@pytest.mark.parametrize(
    ("outputs", "unit_tiles"), [([28672], 4), ([4096], 4), ([4096, 1024], 6), ([4096, 1024, 1024], 6)], ids=str
)
def test_a_k_quants_units_for_clusters_are_those_that_leave_the_busiest_the_least(
    outputs: list[int], unit_tiles: int
) -> None:
    cut = cluster_cut(FOUR_BITS, outputs, 4096, 16, sm_count=132, shared_bytes=H200)
    assert cut is not None
    assert cut.unit_tiles == unit_tiles


@pytest.mark.parametrize(
    ("kind", "inputs", "held_groups"), [(FOUR_BITS, 4096, 4), (FOUR_BITS, 14336, 0), (EIGHT_BITS, 4096, 0)], ids=str
)
def test_a_k_quants_activations_stay_where_there_is_room_for_all(
    kind: MatrixKind, inputs: int, held_groups: int
) -> None:
    cut = cluster_cut(kind, [4096], inputs, 16, sm_count=132, shared_bytes=H200)
    assert cut is not None
    assert cut.held_groups == held_groups


def test_few_outputs_of_many_rows_are_split_into_slices_and_many_are_not() -> None:
    few, many = (wide_cut(EIGHT_BITS, [outputs], 64, 132, H200) for outputs in (4096, 28672))
    assert few is not None
    assert many is not None
    assert (few.split, many.split) == (True, False)
    assert few.units([4096], 64) == 16 * 8


def test_slices_left_apart_make_room_for_whole_groups_of_activations() -> None:
    apart, handed = (warpgroup_cut(EIGHT_BITS, [outputs], 64, 132, H200) for outputs in (4096, 28672))
    assert apart is not None
    assert handed is not None
    assert (apart.split, apart.column_blocks) == (True, 4)
    assert (handed.split, handed.column_blocks) == (False, 2)


@pytest.mark.parametrize("code_bits", [4, 8])
def test_stages_hold_whole_groups_where_a_chain_goes_through_them(code_bits: int) -> None:
    cut = warpgroup_cut(MatrixKind(code_bits, 32, has_minimum=True, scale_bytes=1), [28672], 64, 132, H200)
    assert cut is not None
    assert (cut.split, cut.column_blocks) == (False, 4)


@pytest.mark.parametrize(
    ("kind", "rows", "unit"),
    [
        (EIGHT_BITS, 64, (256, 8)),
        (EIGHT_BITS, 96, (256, 6)),
        (EIGHT_BITS, 128, (128, 16)),
        (EIGHT_BITS, 192, (256, 8)),
        (EIGHT_BITS, 512, (128, 16)),
        (F16_KIND, 512, (256, 8)),
        (MatrixKind(4, 32, has_minimum=True, scale_bytes=1), 512, (128, 16)),
        (MatrixKind(4, 32, has_minimum=True, scale_bytes=2), 512, (256, 8)),
    ],
    ids=str,
)
def test_rows_that_fill_tall_units_are_cut_in_them(kind: MatrixKind, rows: int, unit: tuple[int, int]) -> None:
    cut = warpgroup_cut(kind, [28672], rows, 132, H200)
    assert cut is not None
    assert (cut.outputs, cut.tiles) == unit
    assert cut.threads == 2 * cut.outputs + 128


@pytest.mark.parametrize(("outputs", "unit"), [([4096, 1024, 1024], 128), ([4096], 256), ([14336, 14336], 256)])
def test_slices_left_apart_are_halved_where_the_last_would_leave_sms_idle(outputs: list[int], unit: int) -> None:
    cut = warpgroup_cut(EIGHT_BITS, outputs, 64, 132, H200)
    assert cut is not None
    assert cut.outputs == unit


def test_the_few_rows_whose_logits_are_wanted_are_not_cut_in_tall_units() -> None:
    cut = warpgroup_cut(EIGHT_BITS, [128256], 512, 132, H200, is_full=False)
    assert cut is not None
    assert (cut.outputs, cut.tiles) == (256, 8)


def test_a_gpu_too_small_for_a_kind_says_so() -> None:
    with pytest.raises(CannotCompile, match="16 bits need more than 65536 bytes"):
        product_cut(F16_KIND, [4096], 1, sm_count=142, shared_bytes=1 << 16)


def zeros(count: int) -> NDArray[np.int32]:
    return np.zeros(count, np.int32)


@dataclass(frozen=True)
class Run:
    """Rows of one session."""

    pages: range
    position: int
    tokens: tuple[int, ...]
    slot: int | None = None
    follows: bool = False


@pytest.mark.parametrize("blocks_at_once", [0, 264, 10**6])
@pytest.mark.parametrize("partial_slots", [0, 5, 1024])
@pytest.mark.parametrize("wide_at_once", [0, 2, 132])
@pytest.mark.parametrize("group_heads", [1, 3, 4, 7, 8, 12])
def test_units_cover_every_block_that_a_row_sees_once(
    group_heads: int, wide_at_once: int, partial_slots: int, blocks_at_once: int
) -> None:
    cut = AttentionCut(group_heads, 2, blocks_at_once, partial_slots, wide_at_once)
    runs = [
        Run(range(40), 1100, (1,)),
        Run(range(40), 60, (1,) * 10),
        Run(range(40), 0, (1, 2, 3)),
        Run(range(40), 640, (1,) * 5),
    ]
    inputs = StepInputs(zeros, StepLimits(256, 256, 40, 40, 4), cut)
    inputs.place(runs)
    seen: dict[int, list[int]] = {}
    narrow, wide = inputs._cut_units(runs, [len(run.tokens) for run in runs])
    assert len(wide) * cut.kv_heads <= max(wide_at_once, cut.kv_heads)
    covering = [(row, rows, [*range(block, block + blocks)]) for row, rows, block, blocks, *_ in narrow]
    covering += [
        (row, rows, [b for b in range(blocks) if b // 8 % of == one]) for row, rows, blocks, one, of, *_ in wide
    ]
    for row, rows, blocks in covering:
        for covered in range(row, row + rows):
            seen.setdefault(covered, []).extend(blocks)
    positions = [run.position + i for run in runs for i in range(len(run.tokens))]
    for row, position in enumerate(positions):
        assert sorted(seen[row])[: position // 64 + 1] == list(range(position // 64 + 1))
        assert len(seen[row]) == len(set(seen[row]))
