"""How rotary positions, keys, values and attention become kernel launches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from decodepool_kernels import graph as g
from decodepool_kernels.arena import Buffer
from decodepool_kernels.cuda.grids import Pairs, elements, slice_held, slice_threads, slices_of_rows
from decodepool_kernels.cuda.packing import ActivationKind
from decodepool_kernels.cuda.pages import KV_BITS
from decodepool_kernels.cuda.records import Operand, pointer
from decodepool_kernels.cuda.switches import LOG2_E, fold_defines, switch_defines, switches_of
from decodepool_kernels.cuda.tensors import Tensors

PAIR_THREADS, WIDE_THREADS = 128, 384


class AttentionLowering(Tensors):
    """Queries and keys turned, keys and values on their way to the pages, attention and its fold."""

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
        self._last.put(op.q)
        table, head_dim = self._rope_table(rotation), op.q.width // op.heads
        strides = [ctypes.c_longlong(self._stride(tensor.width)) for tensor in (op.q, op.k)]
        counts = (op.heads, op.kv_heads, head_dim, len(rotation.frequencies), int(rotation.interleaved))
        operands = (q, strides[0], k, v, strides[1], *map(ctypes.c_int, counts), table, layer, pointer(self.step))
        heads, is_f16 = op.heads + op.kv_heads, self.pages.kv_bits == KV_BITS["f16"]
        grid = Pairs(heads, head_dim, PAIR_THREADS) if is_f16 else elements(heads, 1)
        threads = PAIR_THREADS if is_f16 else head_dim
        reads, defines = (q, k, v, table), self._kv_bits
        self._emit("rope_append", operands, reads, (q,), grid=grid, threads=threads, defines=defines, takes=apart)
