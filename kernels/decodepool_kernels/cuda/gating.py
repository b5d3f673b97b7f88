"""Which products gate what they make themselves: a gate and what it gates, from one launch, that nobody else reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

from decodepool_kernels import graph as g
from decodepool_kernels.cuda.records import Apart

Results = tuple[tuple[g.Tensor, ...], Apart]
"""What a product results in, and the product."""


def readers(graph: g.Graph) -> Counter[g.Tensor]:
    """Return how many operands of the graph's operations each tensor is."""
    operands = ((field.name, getattr(op, field.name)) for op in graph.operations for field in fields(op))
    return Counter(value for name, value in operands if name != "out" and isinstance(value, g.Tensor))


def gating_product(op: g.SwiGlu, last: Results | None, reading: Counter[g.Tensor]) -> Apart | None:
    """Return the last product, told to gate where its program can, if its results are the gate and what it gates, and
    nobody but `op` reads them, nor more than one what comes of it.
    """
    if last is None or last[0] != (op.gate, op.up) or any(reading[t] != 1 for t in (op.gate, op.up, op.out)):
        return None
    last[1].is_gated = True
    return last[1]
