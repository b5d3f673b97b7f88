"""A graph lowered to the interpreter's records: quantised activations shared among products, buffers reused, barriers
only where one operation needs another's results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from decodepool_sizing.layouts import BLOCK_INPUTS, round_up
from numpy.typing import NDArray

from decodepool_kernels import graph as g
from decodepool_kernels.arena import Buffer, meetings, place
from decodepool_kernels.cpu.buffers import address, aligned_bytes
from decodepool_kernels.cpu.elementwise import VECTOR_BYTES
from decodepool_kernels.cpu.matmul import ACTIVATION_BYTES, TILE_BYTES
from decodepool_kernels.cpu.packing import PackedMatrix, QuantMatrix
from decodepool_kernels.cpu.pages import KvPages
from decodepool_kernels.cpu.records import OPERANDS_AT, RECORD_WORDS, Domain, Op

Operand = int | Buffer


@dataclass(frozen=True)
class Record:
    """One operation with its operands still symbolic. `reads` and `writes` are what meetings and reuse follow; the work
    is `items` pieces and `row_items` more for each row.
    """

    op: Op
    operands: tuple[Operand, ...]
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    items: int = 0
    row_items: int = 0
    real: float = 0.0
    domain: Domain = Domain.STEP


@dataclass(frozen=True)
class Weights:
    """Packed matrices and f32 vectors (padded to a whole block) by tensor name."""

    matrices: Mapping[str, PackedMatrix]
    vectors: Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class LogitsRows:
    """The resident logits rows: where they begin, and how far apart they are in bytes."""

    where: int
    stride_bytes: int


@dataclass(frozen=True)
class LoweredProgram:
    """Records `[n, words]` and their reals, with the memory they point into."""

    records: NDArray[np.int64]
    reals: NDArray[np.float64]
    arena: NDArray[np.uint8]
    constants: tuple[NDArray[Any], ...]


@dataclass
class Lowering:
    """Turns graph operations into records, in order."""

    weights: Weights
    pages: KvPages
    logits: LogitsRows
    table_width: int
    max_rows: int
    records: list[Record] = field(default_factory=list)
    _tensors: dict[g.Tensor, Buffer] = field(default_factory=dict)
    _quantised: dict[Buffer, Buffer] = field(default_factory=dict)
    _tables: dict[g.Rotation, Buffer] = field(default_factory=dict)
    _layers: dict[int, tuple[Buffer, Buffer]] = field(default_factory=dict)
    _constants: list[NDArray[Any]] = field(default_factory=list)

    def lower(self, graph: g.Graph) -> Lowering:
        """Lower a whole graph."""
        for operation in graph.operations:
            if isinstance(operation, g.Rope):
                self._rope_table(operation.rotation)
        for operation in graph.operations:
            self._lower(operation)
        return self

    def _lower(self, operation: g.Operation) -> None:
        match operation:
            case g.Embed():
                self._embed(operation)
            case g.Norm():
                self._norm(operation)
            case g.MatMul():
                self._matmul(operation)
            case g.Rope():
                self._rope(operation)
            case g.Attention():
                self._attention(operation)
            case g.SwiGlu():
                self._swiglu(operation)
            case g.Add():
                self._add(operation)
            case g.Logits():
                self._logits(operation)

    def _stride(self, width: int) -> int:
        return round_up(width, BLOCK_INPUTS) * 4

    def _vectors(self, tensor: g.Tensor) -> int:
        return self._stride(tensor.width) // VECTOR_BYTES

    def _new(self, row_bytes: int) -> Buffer:
        return Buffer(row_bytes * self.max_rows)

    def _tensor(self, tensor: g.Tensor) -> Buffer:
        if tensor not in self._tensors:
            self._tensors[tensor] = self._new(self._stride(tensor.width))
        return self._tensors[tensor]

    def _vector(self, vector: g.Vector | None) -> int:
        return 0 if vector is None else address(self.weights.vectors[vector.name])

    def _emit(
        self, op: Op, operands: tuple[Operand, ...], reads: tuple[Buffer, ...], writes: tuple[Buffer, ...], **rest: Any
    ) -> None:
        self.records.append(Record(op, operands, reads, writes, **rest))

    def _rope_table(self, rotation: g.Rotation) -> None:
        if rotation in self._tables:
            return
        half = len(rotation.frequencies)
        frequencies = np.array(rotation.frequencies, np.float64)
        self._constants.append(frequencies)
        table = self._tables[rotation] = self._new(half * 8)
        self._emit(
            Op.ROPE_TABLE, (address(frequencies), half, table), (), (table,), row_items=1, real=rotation.magnitude
        )

    def _embed(self, op: g.Embed) -> None:
        matrix, out = self.weights.matrices[op.matrix.name], self._tensor(op.out)
        stride = self._stride(op.out.width)
        if isinstance(matrix, QuantMatrix):
            layout = matrix.layout
            operands: tuple[Operand, ...] = (
                address(matrix.codes), address(matrix.scales), matrix.zero, matrix.code_bytes, matrix.scale_bytes,
                layout.code_bits, layout.sub_block, int(layout.has_minimum), layout.scale_bytes, matrix.blocks,
                out, stride,
            )  # fmt: skip
            return self._emit(Op.EMBED_QUANTISED, operands, (), (out,), row_items=1)
        operands = (matrix.kind, address(matrix.weights), matrix.element_bytes, matrix.blocks, out, stride)
        return self._emit(Op.EMBED_FLOAT, operands, (), (out,), row_items=1)

    def _norm(self, op: g.Norm) -> None:
        x, out = self._tensor(op.x), self._tensor(op.out)
        operands = (x, self._vector(op.weight), out, self._stride(op.x.width), op.x.width // op.heads, op.heads)
        self._emit(Op.NORM, operands, (x,), (out,), row_items=op.heads, real=op.epsilon)

    def _quantise(self, x: Buffer, width: int, domain: Domain) -> Buffer:
        if x not in self._quantised:
            blocks = width // BLOCK_INPUTS
            target = self._quantised[x] = self._new(blocks * ACTIVATION_BYTES)
            operands = (x, self._stride(width), target)
            self._emit(Op.QUANTISE, operands, (x,), (target,), row_items=blocks, domain=domain)
        return self._quantised[x]

    def _product(
        self, x: Buffer, width: int, matrix: PackedMatrix, bias: int, out: Operand, stride: int, domain: Domain
    ) -> None:
        writes = (out,) if isinstance(out, Buffer) else ()
        if isinstance(matrix, QuantMatrix):
            q = self._quantise(x, width, Domain.STEP if domain is Domain.STEP else Domain.WANTED)
            operands: tuple[Operand, ...] = (
                matrix.kind, address(matrix.codes), address(matrix.scales), matrix.zero, matrix.code_bytes,
                matrix.scale_bytes, matrix.blocks, q, bias, out, stride,
            )  # fmt: skip
            return self._emit(Op.MATMUL, operands, (q,), writes, items=matrix.tiles, domain=domain)
        block_bytes = BLOCK_INPUTS * TILE_BYTES // 4 * matrix.element_bytes
        operands = (
            matrix.kind, address(matrix.weights), block_bytes, matrix.blocks,
            x, self._stride(width), bias, out, stride,
        )  # fmt: skip
        return self._emit(Op.MATMUL_FLOAT, operands, (x,), writes, items=matrix.tiles, domain=domain)

    def _matmul(self, op: g.MatMul) -> None:
        out, matrix = self._tensor(op.out), self.weights.matrices[op.matrix.name]
        self._product(
            self._tensor(op.x), op.x.width, matrix, self._vector(op.bias), out, self._stride(op.out.width), Domain.STEP
        )

    def _rope(self, op: g.Rope) -> None:
        x, table = self._tensor(op.x), self._tables[op.rotation]
        width, half = op.x.width // op.heads, len(op.rotation.frequencies)
        operands = (x, self._stride(op.x.width), op.heads, width, half, int(op.rotation.interleaved), table)
        self._emit(Op.ROPE, operands, (x, table), (x,), row_items=op.heads)
        self._quantised.pop(x, None)

    def _attention(self, op: g.Attention) -> None:
        layer = self.pages.layers[op.layer]
        kept = self._layers.setdefault(op.layer, (Buffer(0), Buffer(0)))
        width, kind = op.k.width // op.kv_heads, self.pages.kind_index
        for tensor, base, pages, is_key in zip((op.k, op.v), layer.addresses, kept, (1, 0), strict=True):
            source, stride = self._tensor(tensor), self._stride(tensor.width)
            operands: tuple[Operand, ...] = (
                kind, source, stride, op.kv_heads, width, base, layer.page_bytes, is_key, self.table_width,
            )  # fmt: skip
            self._emit(Op.APPEND, operands, (source,), (pages,), row_items=op.kv_heads)
        q, out = self._tensor(op.q), self._tensor(op.out)
        operands = (
            kind, q, self._stride(op.q.width), op.kv_heads, op.heads // op.kv_heads, width, *layer.addresses,
            layer.page_bytes, self.table_width, out, self._stride(op.out.width),
            op.window or g.MOST_TOKENS, self._vector(op.sinks), self._cap(op.soft_cap),
        )  # fmt: skip
        self._emit(
            Op.ATTENTION, operands, (q, *kept), (out,), row_items=op.kv_heads, real=op.scale, domain=Domain.UNITS
        )

    def _cap(self, cap: float | None) -> int:
        """Return where a soft cap and its inverse are, 0 for none."""
        if cap is None:
            return 0
        self._constants.append(np.array([cap, 1 / cap], np.float32))
        return address(self._constants[-1])

    def _swiglu(self, op: g.SwiGlu) -> None:
        gate, up, out = (self._tensor(tensor) for tensor in (op.gate, op.up, op.out))
        self._emit(Op.SWIGLU, (gate, up, out), (gate, up), (out,), row_items=self._vectors(op.out))

    def _add(self, op: g.Add) -> None:
        a, b, out = (self._tensor(tensor) for tensor in (op.a, op.b, op.out))
        self._emit(Op.ADD, (a, b, out), (a, b), (out,), row_items=self._vectors(op.out))

    def _logits(self, op: g.Logits) -> None:
        x, width, stride = self._tensor(op.x), op.x.width, self._stride(op.x.width)
        picked, normed = self._new(stride), self._new(stride)
        self._emit(Op.GATHER, (x, stride, picked, width), (x,), (picked,), row_items=1, domain=Domain.WANTED)
        operands = (picked, self._vector(op.weight), normed, stride, width, 1)
        self._emit(Op.NORM, operands, (picked,), (normed,), row_items=1, real=op.epsilon, domain=Domain.WANTED)
        matrix = self.weights.matrices[op.matrix.name]
        self._product(normed, width, matrix, 0, self.logits.where, self.logits.stride_bytes, Domain.WANTED_TO_SLOTS)

    def finish(self) -> LoweredProgram:
        """Place the buffers and write the records down."""
        uses = [(record.reads, record.writes) for record in self.records]
        placement = place(uses)
        arena = aligned_bytes(placement.size_bytes)
        words = np.zeros((len(self.records), RECORD_WORDS), np.int64)
        for index, (record, must_meet) in enumerate(zip(self.records, meetings(uses, placement), strict=True)):
            values = [
                address(arena) + placement.offsets[item] if isinstance(item, Buffer) else item
                for item in record.operands
            ]
            words[index, :OPERANDS_AT] = record.op, must_meet, record.domain, record.items, record.row_items
            words[index, OPERANDS_AT : OPERANDS_AT + len(values)] = values
        reals = np.array([[record.real] for record in self.records], np.float64)
        return LoweredProgram(words, reals, arena, tuple(self._constants))
