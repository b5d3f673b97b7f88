"""Rotary frequencies against the formulae they are written from."""

from __future__ import annotations

import math

import pytest
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.shape import RopeScaling, RopeShape
from decodepool_worker.model.rotation import rotation

SHAPES = {"llama 3": (128, 500_000.0), "smollm2": (64, 100_000.0), "qwen": (128, 1e6), "tiny": (16, 10_000.0)}


def plainly(count: int, base: float) -> list[float]:
    return [base ** (-2 * i / count) for i in range(count // 2)]


def yarn(count: int, base: float, factor: float, original: int, fast: float, slow: float) -> list[float]:
    """theta = theta_e / f (1 - ramp) + theta_e ramp, where ramp falls from 1 to 0 between the pairs that make `fast`
    turns in the original context and those that make `slow`.
    """

    def pair(turns: float) -> float:
        return count * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair(fast))), min(count - 1, math.ceil(pair(slow)))
    blended = []
    for i, theta in enumerate(plainly(count, base)):
        ramp = 1 - min(1, max(0, (i - low) / max(0.001, high - low)))
        blended.append(theta / factor * (1 - ramp) + theta * ramp)
    return blended


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("count", "base"), SHAPES.values(), ids=list(SHAPES))
def test_without_scaling_each_pair_turns_by_a_power_of_the_base(count: int, base: float, interleaved: bool) -> None:
    found = rotation(RopeShape(count, base), None, interleaved=interleaved)
    assert found.frequencies == pytest.approx(plainly(count, base), rel=1e-14)
    assert found.frequencies[0] == 1
    assert (found.magnitude, found.interleaved) == (1.0, interleaved)


@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0])
def test_linear_scaling_divides_every_angle(factor: float) -> None:
    found = rotation(RopeShape(64, 1e4, RopeScaling("linear", factor)), None, interleaved=True)
    assert found.frequencies == pytest.approx([f / factor for f in plainly(64, 1e4)], rel=1e-14)
    assert found.magnitude == 1.0


@pytest.mark.parametrize("factor", [1.0, 4.0, 40.0])
@pytest.mark.parametrize("original", [32, 4096, 32768])
@pytest.mark.parametrize(("count", "base"), SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (8.0, 2.0)])
def test_yarn_blends_by_turns(count: int, base: float, original: int, factor: float, fast: float, slow: float) -> None:
    scaling = RopeScaling("yarn", factor, original, beta_fast=fast, beta_slow=slow)
    found = rotation(RopeShape(count, base, scaling), None, interleaved=True)
    assert found.frequencies == pytest.approx(yarn(count, base, factor, original, fast, slow), rel=1e-12)
    assert found.magnitude == pytest.approx(1 + 0.1 * math.log(factor), rel=1e-14)


def test_yarn_leaves_fast_pairs_and_interpolates_slow_ones() -> None:
    found = rotation(RopeShape(128, 1e6, RopeScaling("yarn", 4.0, 32768)), None, interleaved=False)
    plain = plainly(128, 1e6)
    assert found.frequencies[0] == plain[0]
    assert found.frequencies[-1] == pytest.approx(plain[-1] / 4, rel=1e-14)


def test_yarn_multiplies_by_the_files_own_factor_too() -> None:
    found = rotation(RopeShape(64, 1e4, RopeScaling("yarn", 4.0, 4096, attn_factor=0.5)), None, interleaved=True)
    assert found.magnitude == pytest.approx(0.5 * (1 + 0.1 * math.log(4)), rel=1e-14)


def test_the_files_factors_divide_frequencies_and_what_fills_them_up_does_not_count() -> None:
    factors = [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0, 1e30]
    found = rotation(RopeShape(16, 1e4), factors + [0.0] * 24, interleaved=True)
    wanted = [f / divisor for f, divisor in zip(plainly(16, 1e4), factors, strict=True)]
    assert found.frequencies == pytest.approx(wanted, rel=1e-14)


def test_the_files_factors_come_before_scaling() -> None:
    factors = [2.0] * 8
    scaled = rotation(RopeShape(16, 1e4, RopeScaling("linear", 4.0)), factors, interleaved=True)
    assert scaled.frequencies == pytest.approx([f / 8 for f in plainly(16, 1e4)], rel=1e-14)


@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_a_factor_that_is_not_above_zero_is_refused_by_place(factor: float) -> None:
    factors = [1.0] * 5 + [factor] + [1.0] * 2
    with pytest.raises(BadModelFile, match=rf"^tensor rope_freqs\.weight: element 5 is {factor:g}, not above 0$"):
        rotation(RopeShape(16, 1e4), factors, interleaved=True)
