"""The vocabulary in which an architecture's step is written, once, for every backend.

A model file calls these operations on tensors; the graph records them in order and a backend lowers the record to its
own program. Every tensor holds one vector of `width` f32 a row of the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

MOST_TOKENS = 1 << 31
"""More than any position."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """A weight matrix by name, `outputs x inputs`, as the file holds it."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True, eq=False)
class Vector:
    """A bias or norm weight by name."""

    name: str
    length: int


@dataclass(frozen=True)
class Rotation:
    """Rotary frequencies of the pairs, in radians a position (f64), and what cosine and sine are multiplied by."""

    frequencies: tuple[float, ...]
    magnitude: float
    interleaved: bool
    """Whether pairs are (2i, 2i + 1); else (i, i + n/2)."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """One f32 vector of `width` a row. `a + b` is the residual sum."""

    graph: Graph
    width: int

    def __add__(self, other: Tensor) -> Tensor:
        _check(self.width == other.width, f"a sum of widths {self.width} and {other.width}")
        return self.graph.record(Add(self.graph.tensor(self.width), self, other)).out


@dataclass(frozen=True)
class Embed:
    """out = row `token` of the matrix."""

    out: Tensor
    matrix: Matrix


@dataclass(frozen=True)
class Norm:
    """out = RMS norm of each of `heads` equal parts of x, times the weight."""

    out: Tensor
    x: Tensor
    weight: Vector
    epsilon: float
    heads: int


@dataclass(frozen=True)
class MatMul:
    """out = matrix x (+ bias)."""

    out: Tensor
    x: Tensor
    matrix: Matrix
    bias: Vector | None


@dataclass(frozen=True)
class Rope:
    """x rotated in place by each row's position, head by head."""

    x: Tensor
    heads: int
    rotation: Rotation


@dataclass(frozen=True)
class Attention:
    """k and v go to the layer's pages; out = softmax(scale q K') V over every position up to the row's own.

    Each switch is off where it is None: `window` is how many positions a row sees, its own the last of them; `sinks`
    holds a score a query head that takes part in the softmax and has no value; a score s becomes
    soft_cap tanh(s / soft_cap).
    """

    out: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    layer: int
    heads: int
    kv_heads: int
    scale: float
    window: int | None = None
    sinks: Vector | None = None
    soft_cap: float | None = None


@dataclass(frozen=True)
class SwiGlu:
    """out = silu(gate) * up."""

    out: Tensor
    gate: Tensor
    up: Tensor


@dataclass(frozen=True)
class Add:
    """out = a + b."""

    out: Tensor
    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class Logits:
    """For the rows whose logits are wanted: matrix times RMS norm of x, kept in each row's resident slot."""

    x: Tensor
    weight: Vector
    epsilon: float
    matrix: Matrix


def _check(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise ValueError(otherwise)


Operation = Embed | Norm | MatMul | Rope | Attention | SwiGlu | Add | Logits

Recorded = TypeVar("Recorded", bound=Operation)


@dataclass(eq=False)
class Graph:
    """Records a step's operations in order. ValueError for operands whose widths do not go together."""

    operations: list[Operation] = field(default_factory=list)

    def tensor(self, width: int) -> Tensor:
        """Return a new tensor that some operation will fill."""
        return Tensor(self, width)

    def record(self, operation: Recorded) -> Recorded:
        """Append an operation and return it."""
        self.operations.append(operation)
        return operation

    def embed(self, matrix: Matrix) -> Tensor:
        """Return each row's token embedding."""
        return self.record(Embed(self.tensor(matrix.inputs), matrix)).out

    def norm(self, x: Tensor, weight: Vector, epsilon: float, heads: int = 1) -> Tensor:
        """Return the RMS norm of x, or of each head of x."""
        _check(x.width == heads * weight.length, f"{weight.name} norms {weight.length} x {heads} heads, not {x.width}")
        return self.record(Norm(self.tensor(x.width), x, weight, epsilon, heads)).out

    def matmul(self, x: Tensor, matrix: Matrix, bias: Vector | None = None) -> Tensor:
        """Return matrix x (+ bias)."""
        _check(x.width == matrix.inputs, f"{matrix.name} takes {matrix.inputs} inputs, not {x.width}")
        if bias is not None:
            _check(bias.length == matrix.outputs, f"{bias.name} adds {bias.length} to {matrix.outputs} outputs")
        return self.record(MatMul(self.tensor(matrix.outputs), x, matrix, bias)).out

    def rope(self, x: Tensor, heads: int, rotation: Rotation) -> Tensor:
        """Rotate x in place and return it."""
        turned = 2 * len(rotation.frequencies)
        _check(x.width % heads == 0 and turned <= x.width // heads, f"{turned} of {x.width} / {heads} dimensions turn")
        return self.record(Rope(x, heads, rotation)).x

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        layer: int,
        heads: int,
        kv_heads: int,
        scale: float,
        window: int | None = None,
        sinks: Vector | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """Append k and v to the layer's pages and return the attention of q over them; `Attention` has the switches."""
        _check(heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads")
        same_head = q.width * kv_heads == k.width * heads and k.width == v.width
        _check(same_head, f"queries {q.width} / {heads}, keys {k.width} / {kv_heads}, values {v.width} / {kv_heads}")
        _check(window is None or 1 <= window < MOST_TOKENS, f"a window of {window} tokens")
        _check(soft_cap is None or 1e-30 < soft_cap < 1e30, f"a soft cap of {soft_cap}")
        if sinks is not None:
            _check(sinks.length == heads, f"{sinks.name} has {sinks.length} sinks for {heads} query heads")
        out, switches = self.tensor(q.width), (window, sinks, soft_cap)
        return self.record(Attention(out, q, k, v, layer, heads, kv_heads, scale, *switches)).out

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return silu(gate) * up."""
        _check(gate.width == up.width, f"a gate of {gate.width} for {up.width}")
        return self.record(SwiGlu(self.tensor(gate.width), gate, up)).out

    def logits(self, x: Tensor, weight: Vector, epsilon: float, matrix: Matrix) -> None:
        """End the step: logits of the rows that want them."""
        _check(x.width == weight.length, f"{weight.name} norms {weight.length}, not {x.width}")
        _check(x.width == matrix.inputs, f"{matrix.name} takes {matrix.inputs} inputs, not {x.width}")
        self.record(Logits(x, weight, epsilon, matrix))
