"""A graph lowered to kernel launches.

Operations that mostly feed another (norm, gate, residual sum, rotation) wait until something asks for their result: a
product asks for it quantised, attention for keys in their pages, and gets one fused launch; anything else asks for it
plain. With `fused` off every operation is a launch of its own; the bits are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import groupby

from decodepool_sizing.layouts import BLOCK_INPUTS

from decodepool_kernels import graph as g
from decodepool_kernels.arena import Buffer
from decodepool_kernels.cuda.activations import activation_bytes
from decodepool_kernels.cuda.grids import elements, held, slice_held, slice_threads, slices_of_rows, whole_rows
from decodepool_kernels.cuda.inputs import ROWS, WANTED
from decodepool_kernels.cuda.lower_attention import PAIR_THREADS, AttentionLowering
from decodepool_kernels.cuda.packing import NO_SUMS, ActivationKind
from decodepool_kernels.cuda.products import MOST_PARTS
from decodepool_kernels.cuda.records import ROW_THREADS, Apart, Operand, PartOperands, pointer
from decodepool_kernels.cuda.tensors import Waits

GATE_WARPS = 16


class Lowering(AttentionLowering):
    """Turns graph operations into records, in order."""

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

    def _wait(self, operation: g.Norm | g.SwiGlu | g.Add) -> None:
        self._waiting[operation.out] = operation
        if not self.fused:
            self.value(operation.out)

    def _plain(self, op: Waits) -> None:
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
        apart = self._last.add(activation, tuple(parts), results)
        operands, defines = (activation, *tail), kind.defines()
        self._emit("matmul", operands, (activation,), writes, parts=apart.products[-1], defines=defines, leaves=apart)

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
