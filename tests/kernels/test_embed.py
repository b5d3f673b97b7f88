from __future__ import annotations

import numpy as np
import pytest
from decodepool_kernels.cpu.packing import PackedMatrix
from decodepool_kernels.graph import Matrix

from tests.kernels.matrices import TYPES, planes
from tests.kernels.probe import Floats, Probe, numbers
from tests.kernels.test_products import FLOAT_TYPES, float_matrix

WIDTH = 96


def embedded(packed: PackedMatrix) -> Floats:
    """Return every row of a matrix."""
    lines = range(packed.outputs)
    with Probe(
        {"line": numbers(0, packed.outputs, 32)},
        lambda g, _: {"y": g.embed(Matrix("m", packed.inputs, packed.outputs))},
        matrices={"m": packed},
        max_rows=packed.outputs,
        threads=2,
    ) as probe:
        return probe.rows(lines)


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 259])
@pytest.mark.parametrize("name", TYPES)
def test_a_quantised_row_is_its_value_rounded_once(name: str, outputs: int) -> None:
    w = planes(name, outputs, 256 if name.endswith("K") else WIDTH)
    assert np.array_equal(embedded(w.packed), w.values.astype(np.float32))


@pytest.mark.parametrize("outputs", [1, 17, 259])
@pytest.mark.parametrize("name", FLOAT_TYPES)
def test_a_float_row_comes_back_as_it_is(name: str, outputs: int) -> None:
    packed, weights = float_matrix(name, numbers(1, outputs, WIDTH))
    assert np.array_equal(embedded(packed), weights)


@pytest.mark.parametrize("name", FLOAT_TYPES)
def test_denormals_come_back_too(name: str) -> None:
    least = {"F32": 1e-40, "F16": 1e-7, "BF16": 1e-40}[name]
    packed, weights = float_matrix(name, numbers(2, 5, WIDTH, spread=least))
    assert (weights != 0).any()
    assert np.array_equal(embedded(packed), weights)
