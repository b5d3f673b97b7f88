"""Activations as 16-bit integers: the integers, the scale and the sums of every block."""

from __future__ import annotations

import numpy as np
import pytest
from decodepool_kernels.graph import Matrix
from numpy.typing import NDArray

from tests.kernels import arithmetic
from tests.kernels.matrices import planes
from tests.kernels.probe import Floats, Probe, Rows, numbers

WIDTH = 96
SMALLEST = np.float32(2.0**-100)
CASES = {
    "plain": numbers(0, 7, WIDTH),
    "large": numbers(1, 7, WIDTH, spread=1e37),
    "small": numbers(2, 7, WIDTH, spread=1e-28),
    "zero": np.zeros((2, WIDTH), np.float32),
    "all equal": np.full((2, WIDTH), -3.7, np.float32),
    "largest finite": np.where(np.arange(WIDTH) % 2, 1, -1)[None] * np.full((1, WIDTH), np.finfo(np.float32).max),
    "denormal": np.full((1, WIDTH), 1e-40, np.float32),
    "at the smallest": np.full((1, WIDTH), SMALLEST),
    "under the smallest": np.full((1, WIDTH), np.nextafter(SMALLEST, np.float32(0))),
    "halves": (np.arange(WIDTH)[None] % 32 + np.float32(0.5)) * np.where(np.arange(WIDTH) % 32 == 31, 0, 1)
    + 32512 * (np.arange(WIDTH) % 32 == 31),
}


def records(x: Floats) -> tuple[NDArray[np.int64], Floats, NDArray[np.int32]]:
    """Return q `[rows, blocks, 32]`, d `[rows, blocks]` and sums (halves, whole) `[rows, blocks, 3]`."""
    w = planes("Q8_0", 16, WIDTH).packed
    with Probe(
        {"x": x}, lambda g, t: {"x": t["x"], "y": g.matmul(t["x"], Matrix("m", WIDTH, 16))}, matrices={"m": w}
    ) as probe:
        probe.step(*(Rows((token,)) for token in range(len(x))))
        kept = probe.quantised("x", len(x)).transpose(1, 0, 2)
    high, low = kept[:, :, :32].view(np.int8).astype(np.int64), kept[:, :, 32:64].view(np.int8).astype(np.int64)
    return 256 * high + low, kept[:, :, 64:68].view(np.float32)[:, :, 0], kept[:, :, 68:80].view(np.int32)


@pytest.mark.parametrize("x", [np.ascontiguousarray(case, np.float32) for case in CASES.values()], ids=list(CASES))
def test_a_block_is_kept_as_written(x: Floats) -> None:
    q, d, sums = records(x)
    wanted_q, wanted_d = arithmetic.quantise(x)
    assert np.array_equal(q, wanted_q)
    assert np.array_equal(d, wanted_d)
    halves = wanted_q.reshape(*wanted_q.shape[:2], 2, 16).sum(axis=3)
    assert np.array_equal(sums, np.concatenate([halves, halves.sum(axis=2, keepdims=True)], axis=2))


@pytest.mark.parametrize("x", [CASES["plain"], CASES["large"], CASES["small"]], ids=["plain", "large", "small"])
def test_an_activation_is_off_by_no_more_than_half_a_step(x: Floats) -> None:
    """Half a step, and two roundings of 2^-24 on a quotient of up to 32512: 0.004 of a step."""
    q, d, _ = records(x)
    off = np.abs(q * d[:, :, None].astype(np.float64) - x.reshape(q.shape).astype(np.float64))
    assert (off <= 0.504 * d[:, :, None]).all()


def test_the_largest_magnitude_becomes_32512() -> None:
    q, _, _ = records(CASES["plain"])
    assert (np.abs(q).max(axis=2) == 32512).all()


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
def test_a_block_with_a_fault_has_no_scale_and_its_neighbours_have_theirs(fault: float) -> None:
    x = numbers(3, 5, WIDTH)
    _, sound, _ = records(x)
    x[2, 40] = fault
    _, d, _ = records(x)
    assert np.isnan(d[2, 1])
    d[2, 1] = sound[2, 1]
    assert np.array_equal(d, sound)
