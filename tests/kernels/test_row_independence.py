"""The exactness law, operation by operation: a row's bytes are the same alone and in any step, from any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from decodepool_kernels.graph import Graph, Matrix, Rotation, Tensor
from decodepool_sizing.layouts import LAYOUT_KINDS

from tests.kernels.matrices import TYPES, planes
from tests.kernels.probe import WIDTHS, Floats, Probe, Rows, assert_same_bits, numbers, vector
from tests.kernels.test_products import FLOAT_TYPES, float_matrix

LINES, WIDTH, OUTPUTS = 256, 96, 41
ROTATION = Rotation(tuple(10000.0 ** (-i / 8) for i in range(16)), 1.0, True)
ONE_TYPE_A_LAYOUT = [next(name for name in TYPES if planes(name, 1, 32).layout == layout) for layout in LAYOUT_KINDS]
MATRICES = {name: planes(name, OUTPUTS, WIDTH).packed for name in ONE_TYPE_A_LAYOUT} | {
    name: float_matrix(name, numbers(4, OUTPUTS, WIDTH))[0] for name in FLOAT_TYPES
}
TABLES = {"line of Q4_1": planes("Q4_1", LINES, WIDTH).packed, "line of Q6_K": planes("Q6_K", LINES, WIDTH).packed}
VECTORS = {"weight": numbers(1, WIDTH), "head weight": numbers(2, 32), "bias": numbers(3, OUTPUTS)}


def record(operation: str, g: Graph, t: dict[str, Tensor]) -> Tensor:
    a, b = t["a"], t["b"]
    match operation:
        case "norm":
            return g.norm(a, vector("weight", VECTORS["weight"]), 1e-5)
        case "norm of heads":
            return g.norm(a, vector("head weight", VECTORS["head weight"]), 1e-5, 3)
        case "sum":
            return a + b
        case "gate":
            return g.swiglu(a, b)
        case "rotation":
            return g.rope(a, 3, ROTATION)
        case "product and bias":
            return g.matmul(a, Matrix("Q4_1", WIDTH, OUTPUTS), vector("bias", VECTORS["bias"]))
    if operation in TABLES:
        return g.embed(Matrix(operation, WIDTH, LINES))
    return g.matmul(a, Matrix(operation, WIDTH, OUTPUTS))


OPERATIONS = ("norm", "norm of heads", "sum", "gate", "rotation", "product and bias", *TABLES, *MATRICES)


@contextmanager
def probe_of(operation: str, threads: int) -> Iterator[Probe]:
    inputs: Mapping[str, Floats] = {"a": numbers(5, LINES, WIDTH), "b": numbers(6, LINES, WIDTH)}
    matrices: dict[str, Any] = {**MATRICES, **TABLES}
    with Probe(
        inputs, lambda g, t: {"y": record(operation, g, t)}, matrices=matrices, vectors=VECTORS, threads=threads
    ) as probe:
        yield probe


def row(token: int) -> Rows:
    """A row whose position is as much its own as its token."""
    return Rows((int(token),), range(16), position=int(token) * 7 % 1000)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_row_is_the_same_at_every_width_and_place(operation: str) -> None:
    random = np.random.default_rng(7)
    with probe_of(operation, 1) as probe:
        alone = np.concatenate([probe.step(row(token))["y"] for token in range(LINES)])
        for width in WIDTHS:
            tokens = random.permutation(LINES)[:width]
            assert_same_bits(probe.step(*map(row, tokens))["y"], alone[tokens])
        doubled = [3, 3, 200, 3]
        assert_same_bits(probe.step(*map(row, doubled))["y"], alone[doubled])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_row_is_the_same_from_any_number_of_threads(operation: str) -> None:
    tokens = np.random.default_rng(8).permutation(LINES)
    with probe_of(operation, 1) as probe:
        wanted = probe.step(*map(row, tokens))["y"]
    for threads in (2, 3, 5):
        with probe_of(operation, threads) as probe:
            for width in (1, 2, 17, LINES):
                assert_same_bits(probe.step(*map(row, tokens[:width]))["y"], wanted[:width])


@pytest.mark.parametrize("fault", [np.nan, np.inf, 3e38], ids=["nan", "inf", "near overflow"])
@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name not in TABLES])
def test_a_fault_in_one_row_leaves_its_neighbours_bytes(operation: str, fault: float) -> None:
    tokens = range(17)
    with probe_of(operation, 2) as probe:
        wanted = probe.step(*map(row, tokens))["y"]
        table = probe.backend._weights.matrices["input a"]
        lines = table.weights.view(np.float32).reshape(-1, WIDTH, 16)  # type: ignore[union-attr]
        lines[0, 40, 5] = fault
        found = probe.step(*map(row, tokens))["y"]
    if not np.isfinite(fault):
        assert not np.isfinite(found[5]).all()
    others = [token for token in tokens if token != 5]
    assert_same_bits(found[others], wanted[others])
