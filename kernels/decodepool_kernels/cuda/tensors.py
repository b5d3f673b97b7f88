"""What lowering knows of a graph's tensors: where they lie, who still waits to be computed, what was launched."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from decodepool_sizing.layouts import BLOCK_INPUTS, round_up
from numpy.typing import NDArray

from decodepool_kernels import graph as g
from decodepool_kernels.arena import Buffer
from decodepool_kernels.cuda.apart import LastProducts
from decodepool_kernels.cuda.packing import ActivationKind
from decodepool_kernels.cuda.pages import KvPages
from decodepool_kernels.cuda.records import Apart, Columns, LogitsRows, Operand, Record, Scratch, Weights, pointer

Waits: TypeAlias = g.Norm | g.SwiGlu | g.Add | g.Attention
"""An operation that mostly feeds another, launched with whoever asks for its result."""


@dataclass
class Tensors(ABC):
    """Places and records of one graph. Subclasses say how what waited is launched."""

    weights: Weights
    pages: KvPages
    logits: LogitsRows
    scratch: Scratch
    max_rows: int
    columns: Columns
    step: int
    last_tokens: int
    place_constant: Callable[[NDArray[Any]], int]
    fused: bool
    records: list[Record] = field(default_factory=list)
    _tensors: dict[g.Tensor, Buffer] = field(default_factory=dict)
    _waiting: dict[g.Tensor, Waits] = field(default_factory=dict)
    _turning: dict[g.Tensor, g.Rope] = field(default_factory=dict)
    _quantised: dict[g.Tensor, dict[ActivationKind, Buffer]] = field(default_factory=dict)
    _tables: dict[g.Rotation, Buffer] = field(default_factory=dict)
    _last: LastProducts = field(init=False)

    def __post_init__(self) -> None:
        self._last = LastProducts(self.columns.most, fused=self.fused)

    @abstractmethod
    def _plain(self, op: Waits) -> None:
        """Launch an operation that waited by itself, its result in f32 rows."""

    @abstractmethod
    def _turned(self, op: g.Rope, x: Buffer) -> None:
        """Launch a rotation of x, in place."""

    def _stride(self, width: int) -> int:
        return round_up(width, BLOCK_INPUTS)

    def _place(self, tensor: g.Tensor) -> Buffer:
        if tensor not in self._tensors:
            self._tensors[tensor] = Buffer(4 * self._stride(tensor.width) * self.max_rows)
        return self._tensors[tensor]

    def value(self, tensor: g.Tensor) -> Buffer:
        """Return where a tensor's f32 rows are, computing them now if they waited."""
        operation, turn = self._waiting.pop(tensor, None), self._turning.pop(tensor, None)
        self._last.ask(tensor)
        if operation is not None:
            self._plain(operation)
        if turn is not None:
            self._turned(turn, self._place(tensor))
        return self._place(tensor)

    def _taken(self, *tensors: g.Tensor) -> tuple[Apart | None, list[Buffer]]:
        """Return what the last products left in slices, where these are all their results, to be folded by whom they
        are for; and where tensors are, or would be.
        """
        apart = self._last.take(tensors)
        return apart, [self.value(tensor) if apart is None else self._place(tensor) for tensor in tensors]

    def _vector(self, vector: g.Vector | None) -> ctypes.c_void_p:
        return pointer(0 if vector is None else self.weights.vectors[vector.name])

    def _emit(
        self, kernel: str, operands: Sequence[Operand], reads: Sequence[Buffer], writes: Sequence[Buffer], **rest: Any
    ) -> None:
        apart: Apart | None = rest.get("takes")
        every = (*reads, apart.activation) if apart else tuple(reads)
        self.records.append(Record(kernel, tuple(operands), every, tuple(writes), **rest))

    def _row(self, width: int) -> tuple[ctypes.c_longlong, ctypes.c_int]:
        return ctypes.c_longlong(self._stride(width)), ctypes.c_int(width)
