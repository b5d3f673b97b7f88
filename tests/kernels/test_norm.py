from __future__ import annotations

import numpy as np
import pytest

from tests.kernels import arithmetic
from tests.kernels.probe import Floats, Probe, assert_same_bits, numbers, vector

EPSILON = 1e-5
SPREADS = {"plain": 1.0, "large": 1e15, "small": 1e-20}


def normed(x: Floats, weight: Floats, heads: int = 1, epsilon: float = EPSILON) -> Floats:
    handle = vector("w", weight)
    with Probe({"x": x}, lambda g, t: {"y": g.norm(t["x"], handle, epsilon, heads)}, vectors={"w": weight}) as probe:
        return probe.rows(range(len(x)))


@pytest.mark.parametrize("spread", SPREADS.values(), ids=list(SPREADS))
@pytest.mark.parametrize("width", [16, 32, 48, 576, 896])
def test_a_norm_takes_the_written_roundings(width: int, spread: float) -> None:
    x, weight = numbers(0, 9, width, spread=spread), numbers(1, width)
    assert_same_bits(normed(x, weight), arithmetic.norm(x, weight, EPSILON))


@pytest.mark.parametrize("heads", [1, 2, 9])
@pytest.mark.parametrize("width", [16, 48, 64, 128])
def test_every_head_is_normed_by_itself(width: int, heads: int) -> None:
    x, weight = numbers(2, 5, heads * width), numbers(3, width)
    wanted = arithmetic.norm(x.reshape(5, heads, width), weight, EPSILON).reshape(x.shape)
    assert_same_bits(normed(x, weight, heads), wanted)


@pytest.mark.parametrize("width", [16, 576])
def test_a_norm_is_near_f64(width: int) -> None:
    """Relative, each 2^-24: width/16 fma, 4 sums, mean and epsilon, halved by the root; root, quotient, products."""
    x, weight = numbers(4, 9, width), numbers(5, width)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPSILON) * weight.astype(np.float64)
    bound = ((width / 16 + 6) / 2 + 4) * 2.0**-24 * np.abs(exact)
    assert (np.abs(normed(x, weight) - exact) <= bound).all()


def test_a_row_of_zeros_stays_zero() -> None:
    assert not normed(np.zeros((2, 64), np.float32), numbers(6, 64)).any()


def test_squares_that_overflow_give_zeros_and_not_faults_of_neighbours() -> None:
    x = numbers(7, 3, 64)
    alone = normed(x, numbers(8, 64))
    x[1] = 1e30
    found = normed(x, numbers(8, 64))
    assert_same_bits(found[[0, 2]], alone[[0, 2]])
    assert not found[1].any()
