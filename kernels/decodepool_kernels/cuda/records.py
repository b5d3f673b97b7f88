"""What a graph is lowered to: launches with their operands still symbolic, and what they are made from."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decodepool_kernels.arena import Buffer
from decodepool_kernels.cuda.grids import Grid
from decodepool_kernels.cuda.inputs import WANTED
from decodepool_kernels.cuda.packing import MatrixKind

ROW_THREADS = 256
HELD_COLUMNS = (2, 4, 8, 16)
"""Rows that a small step's activations have room for."""


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A packed matrix on the device; `kind` None is f32."""

    kind: MatrixKind | None
    outputs: int
    inputs: int
    zero: int
    address: int
    size_bytes: int


@dataclass(frozen=True)
class Weights:
    """Matrices and the addresses of f32 vectors (padded to a whole block) by tensor name, and the bytes of them all."""

    matrices: Mapping[str, DeviceMatrix]
    vectors: Mapping[str, int]
    size_bytes: int


@dataclass(frozen=True)
class LogitsRows:
    """The resident logits rows: where they begin, and how many floats apart they are."""

    address: int
    stride: int


@dataclass(frozen=True)
class Scratch:
    """Where the states of attention's chunks lie, and the totals of wide units that thread blocks share with whose turn
    it is; these are 0 where the GPU has no program for wide units.
    """

    partial_o: int
    partial_ml: int
    total_o: int = 0
    total_ml: int = 0
    turns: int = 0


@dataclass(frozen=True)
class Columns:
    """The rows that an activation has room for: as few as a small step has, so that little is copied beside them; else
    `most`, as large steps share a layout.
    """

    most: int

    def of(self, rows: int) -> int:
        """Return them for a step of up to `rows` rows."""
        return min(next((held for held in HELD_COLUMNS if rows <= held), self.most), self.most)


Operand = Any
"""A ctypes value, a Buffer whose address is known once it is placed, or Columns, known once the step's rows are."""


@dataclass(frozen=True)
class PartOperands:
    """One matrix of a product with its operands still symbolic."""

    matrix: DeviceMatrix
    bias: int
    out: Operand
    out_stride: int


@dataclass(eq=False)
class Apart:
    """Products, in the order of their launches, whose slices may be left apart, beside each other, with the activation
    of `columns` rows that they take; and in which order one record takes their parts as they are left, and folds them
    on the way in: none where nobody does.
    """

    products: list[tuple[PartOperands, ...]]
    activation: Buffer
    columns: int
    order: tuple[int, ...] = ()

    @property
    def parts(self) -> tuple[PartOperands, ...]:
        """The parts of all products."""
        return tuple(part for product in self.products for part in product)

    @property
    def is_taken(self) -> bool:
        """Whether somebody takes them."""
        return bool(self.order)


@dataclass(frozen=True)
class Record:
    """One launch with its operands still symbolic. `grid` gives the blocks for a number of rows, None where they follow
    from how the work is cut. A product leaves slices, where its cut does, to the record that takes them.
    """

    kernel: str
    operands: tuple[Operand, ...]
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    grid: Grid | None = None
    threads: int = ROW_THREADS
    defines: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[PartOperands, ...] = ()
    leaves: Apart | None = None
    takes: Apart | None = None

    @property
    def is_full(self) -> bool:
        """Whether a product is of all rows, not of those alone whose logits are wanted: of a prompt's one or none."""
        domain = self.operands[-1]
        return not isinstance(domain, ctypes.c_int) or domain.value != WANTED


def outputs_of(parts: Sequence[PartOperands]) -> list[int]:
    """Return how many outputs each part has."""
    return [part.matrix.outputs for part in parts]


def pointer(address: int) -> ctypes.c_void_p:
    """Return an address as an argument."""
    return ctypes.c_void_p(address)
