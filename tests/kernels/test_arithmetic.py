"""The tests' own multiply-add, held to exact fractions: what every bit-for-bit claim here rests on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.kernels.arithmetic import fma, tree

SPREADS = {"alike": 0, "apart": 12, "far apart": 30, "at the bottom": -70}


def nearest(value: Fraction) -> np.float32:
    """The f32 nearest to a fraction, even among equals: the best of three around f64's guess."""
    guess = np.float32(float(value))
    around = (guess, np.nextafter(guess, np.float32(np.inf)), np.nextafter(guess, np.float32(-np.inf)))
    return min(around, key=lambda f: (abs(Fraction(float(f)) - value), int(f.view(np.uint32)) & 1))


@pytest.mark.parametrize("spread", SPREADS.values(), ids=list(SPREADS))
def test_fma_rounds_once(spread: int) -> None:
    random = np.random.default_rng(spread + 100)
    exponents = random.integers(-abs(spread), abs(spread) + 1, (3, 2000)) + min(spread, 0)
    a, b, c = (random.standard_normal((3, 2000)) * np.exp2(exponents)).astype(np.float32)
    wanted = [
        nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c, strict=True)
    ]
    assert np.array_equal(fma(a, b, c), np.array(wanted))


def test_fma_takes_no_second_rounding_at_a_tie() -> None:
    a, b = np.float32(1 + 2**-12), np.float32(1 + 2**-12)
    c = np.float32(2**-60)
    assert fma(a, b, c) == np.float32(1 + 2**-11 + 2**-23)
    assert np.float32(np.float64(a) * np.float64(b) + np.float64(c)) != fma(a, b, c)


def test_the_tree_adds_far_lanes_first() -> None:
    lanes = np.zeros(16, np.float32)
    lanes[[0, 8, 4]] = 1e8, -1e8, 1.0
    assert tree(lanes) == 1.0
    lanes[[0, 8, 4]] = 1e8, 1.0, -1e8
    assert tree(lanes) == 0.0
