"""Records made into launches for a number of rows: buffers placed, products and attention cut for the GPU at hand."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from decodepool_sizing.layouts import round_up

from decodepool_kernels.arena import Buffer, Placement
from decodepool_kernels.cuda.attention import COPY_ENGINE_CAPABILITY
from decodepool_kernels.cuda.attention_programs import narrow_ring, wide_ring
from decodepool_kernels.cuda.cluster_cuts import CLUSTER_BLOCKS, ClusterCut, cluster_cut, prefers_clusters
from decodepool_kernels.cuda.device import OVERLAP_CAPABILITY, Function, Gpu, Launch
from decodepool_kernels.cuda.grids import Pairs
from decodepool_kernels.cuda.inputs import NARROW, ROWS, StepKind
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.products import (
    FEWEST_WIDE_ROWS,
    SLICES,
    WARPGROUP_WARPS,
    FewCut,
    Part,
    Parts,
    Slices,
    WarpgroupCut,
    WideCut,
    few_cut,
    product_cut,
    warpgroup_cut,
    wide_cut,
)
from decodepool_kernels.cuda.records import Apart, Columns, Operand, PartOperands, Record, outputs_of, pointer
from decodepool_kernels.cuda.slices import SliceSums

COPYING_THREADS = 32
"""Beside attention's computing ones, where there is a copy engine."""
FOLD_THREADS = 256
FOLD_CLUSTER_THREADS, MOST_CLUSTER_FOLD_ROWS = 128, 4
"""Of a thread block that folds 128 dims of a row in a cluster; rows up to which these blocks all run at once, and are
worth their start however few chunks a row has.
"""
FEW_CAPABILITY = 90
PRODUCT_CLUSTER_CAPABILITY = 90
FOLD_CLUSTER_CAPABILITY = 90
WARPGROUP_CAPABILITY = 90
"""Each its own, so that a test can hold one program to its twin."""
QUANTISING = frozenset({"quantise", "norm_quantise", "swiglu_quantise", "fold_quantise"})
TAKING = frozenset({"norm_quantise", "rope_append"})
"""Kernels that fold what the product ahead left apart."""
LAST_TO_READ = frozenset({"rope_append"})
"""Of these, the kernels that attention follows: it drops from the L2 what they have folded."""
SPREAD = frozenset({"norm_quantise", "swiglu_quantise"})
"""Kernels whose blocks are kept apart."""
FEWEST_SPREAD_ROWS = 8
"""Rows from which they are: with fewer nothing is gained."""
MOST_EARLY_ROWS = 4
"""Rows up to which a norm lets its product start at once: one with a thread block an SM cannot crowd on few of them."""
MANY_ROWS, MOST_HEADS_EACH = 128, 4
"""Rows from which a thread that turns a pair of dims does so in several heads, where it folds no slices: blocks would
take turns on the SMs.
"""
ROOM_BYTES = 1024
MOST_SPREAD = 8
"""Blocks an SM beyond which they are not."""
PRODUCT_STATIC_BYTES = 4096
"""More than any product's own shared arrays."""

Around = tuple[Record | None, Record | None]
"""The records before and after one."""


class Programs:
    """Builds the launches of a step of up to some number of rows."""

    def __init__(
        self, gpu: Gpu, library: KernelLibrary, records: Sequence[Record], placement: Placement, arena: int
    ) -> None:
        self._gpu, self._library = gpu, library
        self._records, self._placement, self._arena = records, placement, arena
        self._sums = SliceSums(gpu, self._cut)
        self._left: dict[Apart, Slices] = {}
        self._spent: Slices | None = None
        self._holds_clusters: bool | None = None
        self._kind = NARROW
        self._flag_bytes = 4 * WARPGROUP_WARPS * gpu.sm_count
        self._flags = gpu.allocate(self._flag_bytes)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of flags and of slices left apart."""
        return self._flag_bytes + self._sums.size_bytes

    def launches(self, rows: int, kind: StepKind = NARROW) -> list[Launch]:
        """Return every launch of a step of up to `rows` rows, in order."""
        self._kind, narrow = kind, kind.narrow
        idle = {kernel for kernel, is_there in (("attention_wide", kind.wide), ("attention", narrow)) if not is_there}
        records = [record for record in self._records if record.kernel not in idle]
        self._left, self._spent = {}, None
        around = zip([None, *records], records, [*records[1:], None], strict=False)
        return [
            launch
            for before, record, after in around
            for launch in self._launches(record, (before, after), rows, narrow)
        ]

    def _launches(self, record: Record, around: Around, rows: int, narrow: bool) -> list[Launch]:
        arguments = tuple(self._placed(operand, rows) for operand in record.operands)
        if record.parts:
            return self._product(record, around, arguments, rows)
        if record.kernel == "attention_wide":
            return [self._attention_wide(record, arguments)]
        if record.grid is None:
            return [self._attention(record, arguments, rows)]
        if record.kernel == "fold_quantise" and narrow and (fold := self._cluster_fold(record, rows)) is not None:
            return [Launch(record.kernel, fold, (SLICES * record.defines["GROUPS"], rows), arguments)]
        defines = dict(record.defines)
        if record.kernel in QUANTISING:
            defines["CORES"] = int(self._has_warpgroups(rows))
        if record.kernel in TAKING:
            slices = self._left.get(record.takes) if record.takes is not None else None
            self._spent = slices if record.kernel in LAST_TO_READ else None
            defines["APART"], arguments = int(slices is not None), (*arguments, slices or Slices())
        kernel, blocks = record.kernel, record.grid(rows)
        if kernel == "norm_quantise":
            defines["EARLY"] = int(rows <= MOST_EARLY_ROWS and self._starts_alone(record, rows))
        if isinstance(record.grid, Pairs):
            each = MOST_HEADS_EACH if rows >= MANY_ROWS and not defines["APART"] else 1
            blocks, defines["EACH"] = record.grid(rows, each), each
        room = self._room(blocks) if kernel in SPREAD and rows >= FEWEST_SPREAD_ROWS else 0
        if kernel == "fold_quantise" and not narrow:
            kernel, arguments = "quantise", _whole_rows(arguments, defines["HEADS"] * defines["HEAD_DIM"])
            defines = {name: defines[name] for name in ("PLANES", "SUMS", "CORES", "ITEMS")}
        function = self._library.function(kernel, defines, record.threads, room)
        return [Launch(kernel, function, blocks, arguments)]

    def _room(self, blocks: tuple[int, int]) -> int:
        """Return the shared memory a block asks for so that no SM takes more of them than its share: those of a kernel
        that starts while SMs fall free one by one would crowd on the first.
        """
        share = -(-blocks[0] * blocks[1] // self._gpu.sm_count)
        return round_up(self._gpu.shared_bytes // (share + 1), ROOM_BYTES) if share <= MOST_SPREAD else 0

    def _starts_alone(self, norm: Record, rows: int) -> bool:
        """Whether the product behind a norm, of few rows, has a thread block an SM."""
        if self._gpu.capability < OVERLAP_CAPABILITY:
            return False
        product = next(record for record in self._records if record.parts and record.operands[0] in norm.writes)
        sm_count, room = self._gpu.sm_count, self._gpu.shared_bytes - PRODUCT_STATIC_BYTES
        if self._cluster_cut(product, None, rows) or self._few_cut(product, rows, sm_count):
            return True
        kind = product.parts[0].matrix.kind
        assert kind is not None
        cut = product_cut(kind, _outputs(product), rows, sm_count=sm_count, shared_bytes=room)
        return 2 * cut.shared_bytes > room

    def _has_warpgroups(self, rows: int) -> bool:
        """Whether products of so many rows take wgmma, and so activations laid out for it."""
        return self._gpu.capability == WARPGROUP_CAPABILITY and rows >= FEWEST_WIDE_ROWS

    def _product(self, record: Record, around: Around, arguments: tuple[Operand, ...], rows: int) -> list[Launch]:
        kind, outputs = record.parts[0].matrix.kind, _outputs(record)
        assert kind is not None
        self._spent = None  # its sums lie where the last ones lay
        arguments = (self._parts(record.parts), *arguments)
        sm_count, room = self._gpu.sm_count, self._gpu.shared_bytes - PRODUCT_STATIC_BYTES
        if self._has_warpgroups(rows):
            return self._warpgroups(record, around[0], arguments, outputs, rows)
        wide = wide_cut(kind, outputs, rows, sm_count, room)
        if wide is not None:
            return self._wide(record, wide, arguments, outputs, rows)
        if self._cluster_cut(record, around[0], rows) is not None:
            return [self._cluster(record, around, arguments, rows)]
        few = self._few_cut(record, rows, sm_count)
        if few is not None:
            return [self._few(record, around[0], few, arguments, rows)]
        cut = product_cut(kind, outputs, rows, sm_count=sm_count, shared_bytes=room)
        defines = {**record.defines, **cut.defines()}
        function = self._library.function(record.kernel, defines, record.threads, cut.shared_bytes)
        blocks = min(cut.units(outputs, rows), sm_count * function.blocks_per_sm)
        return [Launch(_product_name(record), function, (blocks, 1), arguments, _weight_bytes(record))]

    def _cluster_cut(self, record: Record, before: Record | None, rows: int) -> ClusterCut | None:
        """Return the cut of a product that `matmul_cluster` takes, beside the one before or not; None where another
        program takes it, or the device has no room for a cluster.
        """
        cut = self._cut_beside(before, record, rows) or self._cut_alone(record, rows)
        return cut if cut is not None and self._has_room(record, cut) else None

    def _cut_alone(self, record: Record, rows: int, left: int | None = None) -> ClusterCut | None:
        """Return the cut that `matmul_cluster` has for a product: on all SMs, or those `left` by one beside it."""
        kind, inputs = record.parts[0].matrix.kind, record.parts[0].matrix.inputs
        assert kind is not None
        if self._gpu.capability != PRODUCT_CLUSTER_CAPABILITY or not prefers_clusters(kind, rows):
            return None
        room = {"sm_count": left or self._gpu.sm_count, "shared_bytes": self._gpu.shared_bytes - PRODUCT_STATIC_BYTES}
        return cluster_cut(kind, _outputs(record), inputs, rows, **room, is_beside=left is not None)

    def _cut_beside(self, before: Record | None, record: Record | None, rows: int) -> ClusterCut | None:
        """Return the cut of a product beside the one before, where clusters take that one, of the same activation, and
        leave a cluster for every unit.
        """
        if before is None or record is None or not (before.parts and record.parts):
            return None
        ahead = self._cut_alone(before, rows) if before.operands[0] is record.operands[0] else None
        left = 0 if ahead is None else self._gpu.sm_count // CLUSTER_BLOCKS - ahead.units(_outputs(before))
        cut = self._cut_alone(record, rows, CLUSTER_BLOCKS * left) if left > 0 else None
        return cut if cut is not None and cut.units(_outputs(record)) <= left else None

    def _has_room(self, record: Record, cut: ClusterCut) -> bool:
        """Whether the device holds clusters, of the first product that asks as of any."""
        if self._holds_clusters is None:
            self._holds_clusters = self._clusters(self._cluster_function(record, cut, {"BESIDE": 0, "LEADS": 0})) > 0
        return self._holds_clusters

    def _cluster_function(self, record: Record, cut: ClusterCut, places: Mapping[str, int]) -> Function:
        defines = {**record.defines, **cut.defines(), **places}
        return self._library.function("matmul_cluster", defines, cut.threads, cut.shared_bytes)

    def _clusters(self, function: Function) -> int:
        return self._gpu.clusters_at_once(function, CLUSTER_BLOCKS)

    def _few_cut(self, record: Record, rows: int, sm_count: int) -> FewCut | None:
        """Return the cut of a product that `matmul_few` takes, on so many SMs."""
        kind, outputs = record.parts[0].matrix.kind, _outputs(record)
        assert kind is not None
        if self._gpu.capability != FEW_CAPABILITY or self._cluster_cut(record, None, rows) is not None:
            return None
        inputs, room = record.parts[0].matrix.inputs, self._gpu.shared_bytes - PRODUCT_STATIC_BYTES
        return few_cut(kind, outputs, inputs, rows, sm_count=sm_count, shared_bytes=room)

    def _few(
        self, record: Record, before: Record | None, cut: FewCut, arguments: tuple[Operand, ...], rows: int
    ) -> Launch:
        """Return a launch of `matmul_few`, beside the product before where that takes the same activation by the same
        program: on the SMs that it leaves, if they are many.
        """
        sm_count, taken = self._gpu.sm_count, self._taken(record, before, rows)
        if taken is not None and taken <= sm_count * 3 // 4:
            cut = self._few_cut(record, rows, sm_count - taken) or cut
        places, activation, blocks, columns, *rest = arguments
        defines = {**record.defines, **cut.defines(), "COLUMNS": columns.value, "BESIDE": int(taken is not None)}
        function = self._library.function("matmul_few", defines, cut.threads, cut.shared_bytes)
        grid = (cut.blocks(_outputs(record), sm_count), 1)
        return Launch(_product_name(record), function, grid, (places, activation, blocks, *rest), _weight_bytes(record))

    def _taken(self, record: Record, before: Record | None, rows: int) -> int | None:
        """Return the SMs of the product that this one may run beside; None where there is none."""
        if before is None or not before.parts or before.operands[0] is not record.operands[0]:
            return None
        cut = self._few_cut(before, rows, self._gpu.sm_count)
        return None if cut is None else cut.blocks(_outputs(before), self._gpu.sm_count)

    def _cluster(self, record: Record, around: Around, arguments: tuple[Operand, ...], rows: int) -> Launch:
        """Return a launch of `matmul_cluster`, which is told whether it runs beside the product before, and whether it
        leads the one after.
        """
        before, after = around
        cut, beside = self._cluster_cut(record, before, rows), self._cut_beside(before, record, rows)
        assert cut is not None
        places = {"BESIDE": int(beside is not None), "LEADS": int(self._cut_beside(record, after, rows) is not None)}
        function = self._cluster_function(record, cut, places)
        clusters = min(cut.units(_outputs(record)), self._clusters(function))
        grid = (clusters * CLUSTER_BLOCKS, 1)
        return Launch(_product_name(record), function, grid, arguments, _weight_bytes(record))

    def _wide(
        self, record: Record, cut: WideCut, arguments: tuple[Operand, ...], outputs: Sequence[int], rows: int
    ) -> list[Launch]:
        arguments = (*arguments, *self._sums.place(record, rows))
        defines = {**record.defines, **cut.defines()}
        function = self._library.function("matmul_wide", defines, record.threads, cut.shared_bytes)
        blocks = min(cut.units(outputs, rows), self._gpu.sm_count * function.blocks_per_sm)
        product = Launch(_product_name(record), function, (blocks, 1), arguments, _weight_bytes(record))
        return [product, *self._apart(record, cut.places(outputs), rows, arguments)] if cut.split else [product]

    def _warpgroups(
        self, record: Record, before: Record | None, arguments: tuple[Operand, ...], outputs: Sequence[int], rows: int
    ) -> list[Launch]:
        """Return a launch of `matmul_warpgroup`, beside the product before where the slices of both are taken together:
        on the SMs that its last slices leave idle.
        """
        cut, apart = self._cut(record.parts, rows, record.is_full), record.leaves
        assert isinstance(cut, WarpgroupCut)
        assert apart is not None
        is_beside = before is not None and before.leaves is apart and self._sums.are_taken(apart, rows)
        defines = {**record.defines, **cut.defines(), "BESIDE": int(is_beside)}
        function = self._library.function("matmul_warpgroup", defines, cut.threads, cut.shared_bytes)
        blocks = cut.blocks(outputs, rows, self._gpu.sm_count)
        arguments = (*arguments, *self._sums.place(record, rows))
        handing = (*arguments, ctypes.c_void_p(self._flags))
        product = Launch(_product_name(record), function, (blocks, 1), handing, _weight_bytes(record))
        return [product, *self._apart(record, cut.places(outputs), rows, arguments)] if cut.split else [product]

    def _apart(self, record: Record, places: int, rows: int, arguments: tuple[Operand, ...]) -> list[Launch]:
        """Return the launch that folds the slices of a product, unless the record that takes them does so itself."""
        apart = record.leaves
        if apart is not None and self._sums.are_taken(apart, rows):
            self._left[apart] = self._sums.slices(apart, self._placed(apart.activation).value)
            return []
        fold = self._library.function("fold_slices", {"PLANES": record.defines["PLANES"]}, FOLD_THREADS)
        return [Launch("fold_slices", fold, (places, rows), arguments)]

    def take_slices(self, widths: Sequence[int]) -> None:
        """Take the memory of slices left apart for steps of any of these rows."""
        self._sums.take([record for record in self._records if record.parts], widths)

    def _cut(self, parts: Sequence[PartOperands], rows: int, is_full: bool) -> WarpgroupCut | WideCut | None:
        """Return the cut of a product of many rows, most of which there are where it `is_full`; None of few rows."""
        kind, outputs = parts[0].matrix.kind, outputs_of(parts)
        assert kind is not None
        sm_count, room = self._gpu.sm_count, self._gpu.shared_bytes - PRODUCT_STATIC_BYTES
        if self._has_warpgroups(rows):
            return warpgroup_cut(kind, outputs, rows, sm_count, room, is_full=is_full)
        return wide_cut(kind, outputs, rows, sm_count, room)

    def _parts(self, operands: Sequence[PartOperands]) -> Parts:
        parts = Parts(count=len(operands))
        for index, part in enumerate(operands):
            matrix = part.matrix
            parts.part[index] = Part(
                matrix.address, part.bias, self._placed(part.out).value, part.out_stride, matrix.outputs, matrix.zero
            )
        return parts

    def _attention(self, record: Record, arguments: tuple[Operand, ...], rows: int) -> Launch:
        sizes = (record.defines["HEAD_DIM"], record.defines["KV_BITS"], self._gpu.shared_bytes)
        ring = narrow_ring(*sizes, crowded=self._kind.crowded, shared=self._kind.shared)
        copying = COPYING_THREADS if self._gpu.capability >= COPY_ENGINE_CAPABILITY else 0
        threads = record.threads * ring.teams + copying
        spent, self._spent = self._spent or Slices(), None
        deal = {"CLAIMED": int(self._has_warpgroups(rows)), "SPENT": int(spent.width > 0)}
        defines = {**record.defines, "STAGES": ring.stages, "BLOCKS": ring.blocks, "TEAMS": ring.teams, **deal}
        function = self._library.function(record.kernel, defines, threads, ring.shared_bytes)
        arguments = (*arguments, pointer(spent.sums or 0), ctypes.c_int(4 * SLICES * spent.width))
        return Launch(record.kernel, function, (self._gpu.sm_count * function.blocks_per_sm, 1), arguments)

    def _cluster_fold(self, record: Record, rows: int) -> Function | None:
        """Return what folds a few rows' chunks by as many thread blocks as find room; None where another kernel does,
        or the device has no room for a cluster.
        """
        if self._gpu.capability != FOLD_CLUSTER_CAPABILITY or rows > MOST_CLUSTER_FOLD_ROWS:
            return None
        fold = self._library.function("fold_cluster", {**record.defines, "CORES": 0}, FOLD_CLUSTER_THREADS)
        return fold if self._gpu.clusters_at_once(fold, record.defines["GROUPS"]) > 0 else None

    def _attention_wide(self, record: Record, arguments: tuple[Operand, ...]) -> Launch:
        ring = wide_ring(record.defines["HEAD_DIM"], record.defines["KV_BITS"], self._gpu.shared_bytes)
        defines = {**record.defines, "STAGES": ring.stages}
        function = self._library.function(record.kernel, defines, record.threads, ring.shared_bytes)
        return Launch(record.kernel, function, (self._gpu.sm_count, 1), arguments)

    def _placed(self, operand: Operand, rows: int = 0) -> Operand:
        if isinstance(operand, Columns):
            return ctypes.c_int(operand.of(rows))
        if isinstance(operand, Buffer):
            return ctypes.c_void_p(self._arena + self._placement.offsets[operand])
        return operand


def _whole_rows(arguments: tuple[Operand, ...], width: int) -> tuple[Operand, ...]:
    """Return what `quantise` takes of `fold_quantise`'s arguments, where attention left no row in chunks."""
    _, _, out, stride, *target, _ = arguments
    return (out, stride, ctypes.c_int(width), *target, ctypes.c_int(ROWS))


def _outputs(record: Record) -> list[int]:
    return outputs_of(record.parts)


def _weight_bytes(record: Record) -> int:
    return sum(part.matrix.size_bytes for part in record.parts)


def _product_name(record: Record) -> str:
    outputs = "+".join(str(part.matrix.outputs) for part in record.parts)
    return f"product {outputs} x {record.parts[0].matrix.inputs}"
