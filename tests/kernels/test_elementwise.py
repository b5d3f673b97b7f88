from __future__ import annotations

import numpy as np
import pytest

from tests.kernels import arithmetic
from tests.kernels.probe import Floats, Probe, assert_same_bits, numbers

SPREADS = {"plain": 1.0, "wide": 30.0, "far": 1e4, "tiny": 1e-30}


def added(a: Floats, b: Floats) -> Floats:
    with Probe({"a": a, "b": b}, lambda g, t: {"y": t["a"] + t["b"]}) as probe:
        return probe.rows(range(len(a)))


def gated(gate: Floats, up: Floats) -> Floats:
    with Probe({"gate": gate, "up": up}, lambda g, t: {"y": g.swiglu(t["gate"], t["up"])}) as probe:
        return probe.rows(range(len(gate)))


@pytest.mark.parametrize("width", [16, 48, 576])
def test_a_sum_rounds_once(width: int) -> None:
    a, b = numbers(0, 7, width), numbers(1, 7, width, spread=1e-4)
    assert_same_bits(added(a, b), a + b)


@pytest.mark.parametrize("spread", SPREADS.values(), ids=list(SPREADS))
@pytest.mark.parametrize("width", [16, 48, 576])
def test_a_gate_takes_the_written_roundings(width: int, spread: float) -> None:
    gate, up = numbers(2, 7, width, spread=spread), numbers(3, 7, width)
    assert_same_bits(gated(gate, up), arithmetic.swiglu(gate, up))


def test_a_gate_is_near_f64() -> None:
    """e^-x within 2 ulp, then a sum, a quotient and a product: 4.5 ulp of the result, an ulp being 2^-23 at most."""
    gate, up = numbers(4, 9, 64, spread=10), numbers(5, 9, 64)
    wide = gate.astype(np.float64)
    exact = wide / (1 + np.exp(-wide)) * up
    assert (np.abs(gated(gate, up) - exact) <= 4.5 * 2.0**-23 * np.abs(exact)).all()


@pytest.mark.parametrize("magnitude", [88.0, 89.0, 1e3, 1e30, 3e38])
def test_a_shut_gate_lets_nothing_through_and_an_open_one_everything(magnitude: float) -> None:
    gate, up = np.array([[-magnitude, magnitude] * 8], np.float32), np.ones((1, 16), np.float32)
    found = gated(gate, up)[0]
    assert (np.abs(found[::2]) < 1e-35).all()
    assert_same_bits(found[1::2], gate[0, 1::2])


@pytest.mark.parametrize("fault", [np.nan, np.inf], ids=["nan", "inf"])
def test_a_fault_in_a_gate_stays_where_it_is(fault: float) -> None:
    gate, up = numbers(6, 3, 48), numbers(7, 3, 48)
    sound = gated(gate, up)
    gate[1, 17] = fault
    found = gated(gate, up)
    assert not np.isfinite(found[1, 17])
    found[1, 17] = sound[1, 17]
    assert_same_bits(found, sound)
