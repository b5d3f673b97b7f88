from __future__ import annotations

import numpy as np
from decodepool_kernels.cpu.jit import compiled
from decodepool_kernels.cpu.scalar import exp
from numpy.typing import NDArray

from tests.kernels import arithmetic
from tests.kernels.probe import Floats, assert_same_bits


@compiled
def _exp_each(x: Floats, out: Floats) -> None:
    for i in range(x.size):
        out[i] = exp(x[i])


def exp_of(x: NDArray[np.float32]) -> Floats:
    out = np.empty_like(x)
    _exp_each(x, out)
    return out


EVERYWHERE = np.concatenate([np.linspace(-88, 88, 200_001), -np.geomspace(1e-40, 90, 20_001), [0.0, -0.0]]).astype(
    np.float32
)


def test_every_value_takes_the_written_roundings() -> None:
    assert_same_bits(exp_of(EVERYWHERE), arithmetic.exp(EVERYWHERE))


def test_it_is_within_2_ulp_of_e_to_the_x() -> None:
    x = EVERYWHERE[EVERYWHERE >= -87]
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(exp_of(x) - exact) / np.spacing(exact.astype(np.float32))).max() < 2


def test_it_ends_at_zero() -> None:
    edge = np.float32(-87)
    below = np.nextafter(edge, np.float32(-np.inf))
    assert exp_of(np.array([edge]))[0] > np.finfo(np.float32).tiny
    assert not exp_of(np.array([below, -1e4, -3e38, -np.inf], np.float32)).any()


def test_zero_gives_exactly_one() -> None:
    assert exp_of(np.zeros(1, np.float32))[0] == 1


def test_nan_stays_nan() -> None:
    assert np.isnan(exp_of(np.array([np.nan, -np.nan], np.float32))).all()
