"""Where products of many rows leave the sums of their slices, or hand sums on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from decodepool_sizing.layouts import round_up

from decodepool_kernels.cuda.activations import scales_at
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.products import SLICES, WIDE_OUTPUTS, Slices, WarpgroupCut, WideCut
from decodepool_kernels.cuda.records import Apart, Operand, PartOperands, Record, outputs_of, pointer

CutOf = Callable[[Sequence[PartOperands], int, bool], WarpgroupCut | WideCut | None]
"""How a product of these parts is cut for up to some rows, most of which there are or not; None where they are few."""


class SliceSums:
    """Memory that a step's products share, one after the other; those whose slices one record takes together leave them
    beside each other, `[slice][row][width of all]`.
    """

    def __init__(self, gpu: Gpu, cut_of: CutOf) -> None:
        self._gpu, self._cut_of = gpu, cut_of
        self._address = self.size_bytes = 0

    def are_taken(self, apart: Apart, rows: int) -> bool:
        """Whether a record takes the slices of these products as a step of so many rows leaves them: where one product
        of all their outputs would leave them apart too.
        """
        cuts = [(self._cut_of(parts, rows, True), outputs_of(parts)) for parts in apart.products]
        units = sum(cut.whole_units(outputs, rows) for cut, outputs in cuts if cut is not None)
        fewest = [0 if cut is None else cut.fewest_whole(self._gpu.sm_count) for cut, _ in cuts]
        return apart.is_taken and units < min(fewest)

    def take(self, products: Iterable[Record], widths: Sequence[int]) -> None:
        """Take the memory that the largest of these products needs, for steps of any of these rows."""
        self._at_least(max((self._bytes_of(record, rows) for record in products for rows in widths), default=0))

    def place(self, record: Record, rows: int) -> tuple[Operand, Operand]:
        """Return where a product's sums go, and how many floats a slice of one row takes."""
        first, width = self._beside(record, rows)
        return pointer(self._at_least(self._bytes_of(record, rows)) + 4 * first), ctypes.c_int(width)

    def slices(self, apart: Apart, activation: int) -> Slices:
        """Return what the record that takes slices is told of them; `activation` is where their products' lies."""
        kind, inputs = apart.parts[0].matrix.kind, apart.parts[0].matrix.inputs
        assert kind is not None
        scales = activation + scales_at(inputs, apart.columns, kind.planes)
        slices = Slices(sums=self._address, scales=scales, columns=apart.columns, width=_width(apart.parts))
        for index, part in enumerate(apart.order):
            slices.first[index], slices.biases[index] = _width(apart.parts[:part]), apart.parts[part].bias
        return slices

    def _beside(self, record: Record, rows: int) -> tuple[int, int]:
        """Return where in a row of slices a product's begin, and the row's width."""
        apart = record.leaves
        if apart is None or not self.are_taken(apart, rows):
            return 0, _width(record.parts)
        before = takewhile(lambda parts: parts is not record.parts, apart.products)
        return sum(map(_width, before)), _width(apart.parts)

    def _bytes_of(self, record: Record, rows: int) -> int:
        cut = self._cut_of(record.parts, rows, record.is_full)
        if cut is not None and cut.split:
            return 4 * SLICES * rows * self._beside(record, rows)[1]
        if not isinstance(cut, WarpgroupCut):
            return 0
        return cut.handed_bytes(outputs_of(record.parts), rows, self._gpu.sm_count)

    def _at_least(self, size_bytes: int) -> int:
        """Return memory of so many bytes: the largest asked for so far."""
        if size_bytes > self.size_bytes:
            self._address, self.size_bytes = self._gpu.allocate(size_bytes), size_bytes
        return self._address


def _width(parts: Sequence[PartOperands]) -> int:
    return sum(round_up(part.matrix.outputs, WIDE_OUTPUTS) for part in parts)
