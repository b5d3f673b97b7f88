"""A graph lowered to kernel launches.

Operations that mostly feed another (norm, gate, residual sum, rotation) wait until something asks for their result: a
product asks for it quantised, attention for keys in their pages, and gets one fused launch; anything else asks for it
plain. With `fused` off every operation is a launch of its own; the bits are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from decodepool_sizing.layouts import BLOCK_INPUTS, round_up
from numpy.typing import NDArray

from decodepool_kernels import graph as g
from decodepool_kernels.arena import Buffer
from decodepool_kernels.cuda.activations import activation_bytes
from decodepool_kernels.cuda.grids import Pairs, elements, held, slice_held, slice_threads, slices_of_rows, whole_rows
from decodepool_kernels.cuda.inputs import ROWS, WANTED
from decodepool_kernels.cuda.packing import NO_SUMS, ActivationKind
from decodepool_kernels.cuda.pages import KV_BITS, KvPages
from decodepool_kernels.cuda.products import MOST_PARTS
from decodepool_kernels.cuda.records import (
    ROW_THREADS,
    Apart,
    Columns,
    LogitsRows,
    Operand,
    PartOperands,
    Record,
    Scratch,
    Weights,
    pointer,
)
from decodepool_kernels.cuda.switches import LOG2_E, fold_defines, switch_defines, switches_of

PAIR_THREADS, WIDE_THREADS, GATE_WARPS = 128, 384, 16


@dataclass
class Lowering:
    """Turns graph operations into records, in order."""

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
    _waiting: dict[g.Tensor, g.Norm | g.SwiGlu | g.Add | g.Attention] = field(default_factory=dict)
    _turning: dict[g.Tensor, g.Rope] = field(default_factory=dict)
    _quantised: dict[g.Tensor, dict[ActivationKind, Buffer]] = field(default_factory=dict)
    _tables: dict[g.Rotation, Buffer] = field(default_factory=dict)
    _last_product: tuple[tuple[g.Tensor, ...], Apart] | None = None
    _given: set[g.Tensor] = field(default_factory=set)

    def lower(self, graph: g.Graph) -> Lowering:
        """Lower a whole graph."""
        for same, run in groupby(graph.operations, key=lambda op: op.x if isinstance(op, g.MatMul) else None):
            operations = list(run)
            if same is not None:
                self._matmuls(same, [op for op in operations if isinstance(op, g.MatMul)])
                continue
            for operation in operations:
                getattr(self, f"_{type(operation).__name__.lower()}")(operation)
        return self

    def _stride(self, width: int) -> int:
        return round_up(width, BLOCK_INPUTS)

    def _place(self, tensor: g.Tensor) -> Buffer:
        if tensor not in self._tensors:
            self._tensors[tensor] = Buffer(4 * self._stride(tensor.width) * self.max_rows)
        return self._tensors[tensor]

    def value(self, tensor: g.Tensor) -> Buffer:
        """Return where a tensor's f32 rows are, computing them now if they waited."""
        operation, turn = self._waiting.pop(tensor, None), self._turning.pop(tensor, None)
        assert tensor not in self._given, "a product's slices were given away: nobody else finds its result"
        if self._last_product is not None and tensor in self._last_product[0]:
            self._last_product = None
        if operation is not None:
            self._plain(operation)
        if turn is not None:
            self._turned(turn, self._place(tensor))
        return self._place(tensor)

    def _taken(self, *tensors: g.Tensor) -> tuple[Apart | None, list[Buffer]]:
        """Return what the last product left in slices, where these are all its results, to be folded by whom they are
        for; and where tensors are, or would be.
        """
        if self._last_product is None or self._last_product[0] != tensors:
            return None, [self.value(tensor) for tensor in tensors]
        apart, self._last_product = self._last_product[1], None
        apart.is_taken = True
        self._given.update(tensors)
        return apart, [self._place(tensor) for tensor in tensors]

    def _vector(self, vector: g.Vector | None) -> ctypes.c_void_p:
        return pointer(0 if vector is None else self.weights.vectors[vector.name])

    def _emit(
        self, kernel: str, operands: Sequence[Operand], reads: Sequence[Buffer], writes: Sequence[Buffer], **rest: Any
    ) -> None:
        apart: Apart | None = rest.get("takes")
        every = (*reads, apart.activation) if apart else tuple(reads)
        self.records.append(Record(kernel, tuple(operands), every, tuple(writes), **rest))

    def _wait(self, operation: g.Norm | g.SwiGlu | g.Add) -> None:
        self._waiting[operation.out] = operation
        if not self.fused:
            self.value(operation.out)

    def _plain(self, op: g.Norm | g.SwiGlu | g.Add | g.Attention) -> None:
        stride, width = ctypes.c_longlong(self._stride(op.out.width)), op.out.width
        if isinstance(op, g.Norm):
            self._plain_norm(op, ROWS)
            return
        if isinstance(op, g.Attention):
            self._fold(op)
            return
        first, second = (op.gate, op.up) if isinstance(op, g.SwiGlu) else (op.a, op.b)
        operands = (self.value(first), self.value(second), self._place(op.out))
        kernel = "swiglu" if isinstance(op, g.SwiGlu) else "add"
        grid = elements(width, 4 * ROW_THREADS)
        self._emit(
            kernel, (*operands, stride, ctypes.c_int(width), pointer(self.step)), operands[:2], operands[2:], grid=grid
        )

    def _plain_norm(self, op: g.Norm, domain: int) -> None:
        x, out = self.value(op.x), self._place(op.out)
        sizes = (
            ctypes.c_longlong(self._stride(op.x.width)),
            ctypes.c_int(op.x.width // op.heads),
            ctypes.c_float(op.epsilon),
        )
        operands = (x, self._vector(op.weight), out, *sizes, pointer(self.step), ctypes.c_int(domain))
        self._emit(
            "rms_norm", operands, (x,), (out,), grid=lambda rows: (rows, op.heads), defines=held(op.x.width // op.heads)
        )

    def _norm(self, op: g.Norm) -> None:
        if op.heads == 1:
            self._wait(op)
        else:
            self._plain_norm(op, ROWS)

    def _swiglu(self, op: g.SwiGlu) -> None:
        self._wait(op)

    def _add(self, op: g.Add) -> None:
        self._wait(op)

    def _embed(self, op: g.Embed) -> None:
        matrix, out = self.weights.matrices[op.matrix.name], self._place(op.out)
        kernel, counts, defines = "embed_f32", [matrix.inputs], dict[str, int]()
        if matrix.kind is not None:
            kernel, counts, defines = "embed", [matrix.inputs // BLOCK_INPUTS, matrix.zero], matrix.kind.defines()
        stride = ctypes.c_longlong(self._stride(op.out.width))
        places = (pointer(self.step), pointer(self.last_tokens))
        operands = (pointer(matrix.address), out, stride, *map(ctypes.c_int, counts), *places)
        self._emit(kernel, operands, (), (out,), grid=elements(op.out.width, ROW_THREADS), defines=defines)

    def _activation(self, x: g.Tensor, kind: ActivationKind, domain: int = ROWS) -> Buffer:
        """Return x quantised, by one launch with the operation that makes it where that still waits."""
        made = self._quantised.setdefault(x, {})
        found = next((buffer for held, buffer in made.items() if held.serves(kind)), None)
        if found is not None:
            return found
        target = made[kind] = Buffer(activation_bytes(x.width, self.columns.most, kind.planes))
        waiting = self._waiting.get(x)
        if isinstance(waiting, g.Norm):
            self._norm_quantise(waiting, target, kind, domain)
        elif isinstance(waiting, g.SwiGlu):
            self._swiglu_quantise(waiting, target, kind)
        elif isinstance(waiting, g.Attention):
            self._fold_quantise(waiting, target, kind)
        else:
            value = self.value(x)
            operands = (value, *self._row(x.width), target, self.columns, pointer(self.step), ctypes.c_int(domain))
            self._emit(
                "quantise",
                operands,
                (value,),
                (target,),
                grid=slices_of_rows,
                threads=slice_threads(x.width),
                defines={**kind.defines(), **slice_held(x.width)},
            )
        return target

    def _row(self, width: int) -> tuple[ctypes.c_longlong, ctypes.c_int]:
        return ctypes.c_longlong(self._stride(width)), ctypes.c_int(width)

    def _norm_quantise(self, op: g.Norm, target: Buffer, kind: ActivationKind, domain: int) -> None:
        residual, total = self._waiting.get(op.x), self._place(op.x)
        sums: tuple[Buffer, ...] = ()
        apart: Apart | None = None
        if isinstance(residual, g.Add):
            del self._waiting[op.x]
            apart, addend = self._taken(residual.b)
            reads, sums = [self.value(residual.a), *addend], (total,)
            sources: tuple[Operand, ...] = (*reads, total)
        else:
            reads = [self.value(op.x)]
            sources = (*reads, pointer(0), pointer(0))
        row = (self._vector(op.weight), ctypes.c_longlong(self._stride(op.x.width)), ctypes.c_float(op.epsilon))
        operands = (*sources, *row, target, self.columns, pointer(self.step), ctypes.c_int(domain))
        defines = {**kind.defines(), "WIDTH": op.x.width}
        self._emit("norm_quantise", operands, reads, (*sums, target), grid=whole_rows, defines=defines, takes=apart)

    def _swiglu_quantise(self, op: g.SwiGlu, target: Buffer, kind: ActivationKind) -> None:
        reads, width = (self.value(op.gate), self.value(op.up)), op.out.width
        operands = (*reads, ctypes.c_longlong(self._stride(width)), target, self.columns, pointer(self.step))
        defines, threads = {**kind.defines(), "WIDTH": width}, slice_threads(width, GATE_WARPS)
        self._emit("swiglu_quantise", operands, reads, (target,), grid=slices_of_rows, threads=threads, defines=defines)

    def _matmuls(self, x: g.Tensor, operations: Sequence[g.MatMul]) -> None:
        """Products of one tensor: those of a kind share a launch. Who wants sums comes first and makes them for all."""
        for operation in operations if not self.fused else ():
            self._parts(x, [operation])
        kinds = {self.weights.matrices[op.matrix.name].kind for op in operations} if self.fused else set()
        for kind in sorted(kinds, key=lambda kind: (kind is None or kind.sums == NO_SUMS, repr(kind))):
            alike = [op for op in operations if self.weights.matrices[op.matrix.name].kind == kind]
            for first in range(0, len(alike), MOST_PARTS):
                self._parts(x, alike[first : first + MOST_PARTS])

    def _parts(self, x: g.Tensor, operations: Sequence[g.MatMul]) -> None:
        parts = [
            PartOperands(
                self.weights.matrices[op.matrix.name],
                self._vector(op.bias).value or 0,
                self._place(op.out),
                self._stride(op.out.width),
            )
            for op in operations
        ]
        self._product(x, parts, ROWS, tuple(op.out for op in operations))

    def _product(
        self, x: g.Tensor, parts: Sequence[PartOperands], domain: int, results: tuple[g.Tensor, ...] = ()
    ) -> None:
        writes = [part.out for part in parts if isinstance(part.out, Buffer)]
        kind = parts[0].matrix.kind
        if kind is None:
            for part in parts:
                self._product_f32(x, part, domain)
            return
        activation = self._activation(x, kind.activation, domain)
        tail = (
            ctypes.c_int(x.width // BLOCK_INPUTS),
            self.columns,
            pointer(self.step),
            ctypes.c_int(domain),
        )
        apart = Apart(tuple(parts), activation, self.columns.most)
        self._last_product = (results, apart) if self.fused else None
        operands, defines = (activation, *tail), kind.defines()
        self._emit("matmul", operands, (activation,), writes, parts=tuple(parts), defines=defines, leaves=apart)

    def _product_f32(self, x: g.Tensor, part: PartOperands, domain: int) -> None:
        value, matrix = self.value(x), part.matrix
        sizes = (ctypes.c_longlong(part.out_stride), ctypes.c_int(matrix.outputs), ctypes.c_int(matrix.inputs))
        operands = (
            pointer(matrix.address), value, ctypes.c_longlong(self._stride(x.width)),
            pointer(part.bias), part.out, *sizes,
            pointer(self.step), ctypes.c_int(domain),
        )  # fmt: skip
        writes = [part.out] if isinstance(part.out, Buffer) else []
        self._emit(
            "matmul_f32", operands, (value,), writes, grid=elements(matrix.outputs, PAIR_THREADS), threads=PAIR_THREADS
        )

    def _rope_table(self, rotation: g.Rotation) -> Buffer:
        if rotation not in self._tables:
            half = len(rotation.frequencies)
            table = self._tables[rotation] = Buffer(8 * half * self.max_rows)
            frequencies = pointer(self.place_constant(np.array(rotation.frequencies, np.float64)))
            operands = (frequencies, ctypes.c_int(half), ctypes.c_double(rotation.magnitude), table, pointer(self.step))
            self._emit("rope_table", operands, (), (table,), grid=elements(half, PAIR_THREADS), threads=PAIR_THREADS)
            self.records.insert(1, self.records.pop())  # beside the embedding, whose memory is not its
        return self._tables[rotation]

    def _rope(self, op: g.Rope) -> None:
        if op.x in self._waiting or op.x in self._turning:
            self.value(op.x)
        self._turning[op.x] = op
        if not self.fused:
            self.value(op.x)

    def _turned(self, op: g.Rope, x: Buffer) -> None:
        table, half = self._rope_table(op.rotation), len(op.rotation.frequencies)
        counts = (op.heads, op.x.width // op.heads, half, int(op.rotation.interleaved))
        row = ctypes.c_longlong(self._stride(op.x.width))
        operands = (x, row, *map(ctypes.c_int, counts), table, pointer(self.step))
        self._emit(
            "rope", operands, (x, table), (x,), grid=elements(op.heads * half, PAIR_THREADS), threads=PAIR_THREADS
        )

    def _attention(self, op: g.Attention) -> None:
        head_dim, layer = op.q.width // op.heads, pointer(self.pages.layers[op.layer].address)
        turns = [self._turning.get(op.q), self._turning.get(op.k)]
        if turns[0] is not None and turns[1] is not None and turns[0].rotation == turns[1].rotation:
            self._rope_append(op, turns[0].rotation, layer)
        else:
            self._append(op, head_dim, layer)
        q, out = self.value(op.q), self._place(op.out)
        to = (out, ctypes.c_longlong(self._stride(op.out.width)))
        partials = (pointer(self.scratch.partial_o), pointer(self.scratch.partial_ml))
        heads = (ctypes.c_int(op.heads), ctypes.c_int(op.kv_heads), ctypes.c_float(op.scale * LOG2_E))
        source = (q, ctypes.c_longlong(self._stride(op.q.width)), layer)
        self._attend("attention", op, (*source, *to, *partials, *heads), threads=PAIR_THREADS)
        if self.scratch.turns:
            totals = (pointer(self.scratch.total_o), pointer(self.scratch.total_ml), pointer(self.scratch.turns))
            self._attend("attention_wide", op, (*source, *to, *totals, *heads), threads=WIDE_THREADS)
        self._waiting[op.out] = op
        if not self.fused:
            self.value(op.out)

    def _attend(self, kernel: str, op: g.Attention, operands: Sequence[Operand], *, threads: int) -> None:
        operands = (*operands, pointer(self.step), switches_of(op, self._vector(op.sinks)))
        defines = {"HEAD_DIM": op.q.width // op.heads, **self._kv_bits, **switch_defines(op)}
        defines["SOFT_CAP"] = int(op.soft_cap is not None)
        reads, writes = (self._place(op.q),), (self._place(op.out),)
        self._emit(kernel, operands, reads, writes, threads=threads, defines=defines)

    @property
    def _kv_bits(self) -> dict[str, int]:
        return {"KV_BITS": self.pages.kv_bits}

    def _fold(self, op: g.Attention) -> None:
        out, grid = self._place(op.out), elements(op.out.width, 4 * PAIR_THREADS)
        switches, defines = switches_of(op, self._vector(op.sinks)), fold_defines(op)
        operands = (*self._partials(op), pointer(self.step), switches)
        self._emit("attention_fold", operands, (out,), (out,), grid=grid, threads=PAIR_THREADS, defines=defines)

    def _partials(self, op: g.Attention) -> tuple[Operand, ...]:
        """Return what the kernels that fold take: chunk states, finished rows."""
        partials = (pointer(self.scratch.partial_o), pointer(self.scratch.partial_ml))
        to = (self._place(op.out), ctypes.c_longlong(self._stride(op.out.width)))
        return (*partials, *to)

    def _fold_quantise(self, op: g.Attention, target: Buffer, kind: ActivationKind) -> None:
        out, width = self._place(op.out), op.out.width
        switches = switches_of(op, self._vector(op.sinks))
        operands = (*self._partials(op), target, self.columns, pointer(self.step), switches)
        threads = slice_threads(width)
        defines = {**kind.defines(), "GROUPS": threads // 32, **slice_held(width), **fold_defines(op)}
        self._emit("fold_quantise", operands, (out,), (target,), grid=slices_of_rows, threads=threads, defines=defines)

    def _append(self, op: g.Attention, head_dim: int, layer: ctypes.c_void_p) -> None:
        k, v = self.value(op.k), self.value(op.v)
        sizes = (ctypes.c_longlong(self._stride(op.k.width)), ctypes.c_int(op.kv_heads), ctypes.c_int(head_dim))
        grid = elements(op.k.width, PAIR_THREADS * (4 if self.pages.kv_bits == KV_BITS["f16"] else 1))
        operands = (k, v, *sizes, layer, pointer(self.step))
        self._emit("append", operands, (k, v), (), grid=grid, threads=PAIR_THREADS, defines=self._kv_bits)

    def _rope_append(self, op: g.Attention, rotation: g.Rotation, layer: ctypes.c_void_p) -> None:
        """Turn queries in place, and keys on their way to the pages: nobody reads them elsewhere."""
        del self._turning[op.q], self._turning[op.k]
        apart, (q, k, v) = self._taken(op.q, op.k, op.v)
        self._given.discard(op.q)
        table, head_dim = self._rope_table(rotation), op.q.width // op.heads
        strides = [ctypes.c_longlong(self._stride(tensor.width)) for tensor in (op.q, op.k)]
        counts = (op.heads, op.kv_heads, head_dim, len(rotation.frequencies), int(rotation.interleaved))
        operands = (q, strides[0], k, v, strides[1], *map(ctypes.c_int, counts), table, layer, pointer(self.step))
        heads, is_f16 = op.heads + op.kv_heads, self.pages.kv_bits == KV_BITS["f16"]
        grid = Pairs(heads, head_dim, PAIR_THREADS) if is_f16 else elements(heads, 1)
        threads = PAIR_THREADS if is_f16 else head_dim
        reads, defines = (q, k, v, table), self._kv_bits
        self._emit("rope_append", operands, reads, (q,), grid=grid, threads=threads, defines=defines, takes=apart)

    def _logits(self, op: g.Logits) -> None:
        matrix, graph = self.weights.matrices[op.matrix.name], op.x.graph
        normed = graph.tensor(op.x.width)
        if self.fused and matrix.kind is not None:
            self._waiting[normed] = g.Norm(normed, op.x, op.weight, op.epsilon, 1)
        else:
            self._plain_norm(g.Norm(normed, self._gathered(op.x), op.weight, op.epsilon, 1), WANTED)
        self._product(normed, [PartOperands(matrix, 0, pointer(self.logits.address), self.logits.stride)], WANTED)

    def _gathered(self, x: g.Tensor) -> g.Tensor:
        """Return the rows of x whose logits are wanted."""
        picked = x.graph.tensor(x.width)
        source, out = self.value(x), self._place(picked)
        operands = (source, out, *self._row(x.width), pointer(self.step))
        self._emit("gather", operands, (source,), (out,), grid=elements(x.width, 4 * ROW_THREADS))
        return picked
