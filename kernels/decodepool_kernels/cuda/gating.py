"""Which products gate what they make themselves: a gate and what it gates, from one launch, that nobody else reads."""

from __future__ import annotations

from dataclasses import fields

from decodepool_kernels import graph as g
from decodepool_kernels.cuda.records import Apart

Results = tuple[tuple[g.Tensor, ...], Apart]
"""What a product results in, and the product."""


def gating_product(op: g.SwiGlu, last: Results | None) -> Apart | None:
    """Return the last product, told to gate where its program can, if its results are the gate and what it gates,
    nobody but `op` reads them, and one operation what comes of it.
    """
    if last is None or last[0] != (op.gate, op.up):
        return None
    if any(_readers(tensor) != 1 for tensor in (op.gate, op.up, op.out)):
        return None
    last[1].is_gated = True
    return last[1]


def _readers(tensor: g.Tensor) -> int:
    """Return how many operands of its graph's operations a tensor is."""
    operands = ((field.name, getattr(op, field.name)) for op in tensor.graph.operations for field in fields(op))
    return sum(operand is tensor and name != "out" for name, operand in operands)
