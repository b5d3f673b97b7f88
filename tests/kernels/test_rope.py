from __future__ import annotations

import numpy as np
import pytest
from decodepool_kernels.graph import Rotation

from tests.kernels import arithmetic
from tests.kernels.probe import Floats, Probe, Rows, assert_same_bits, numbers

POSITIONS = (0, 1, 2, 63, 64, 511, 1023, 4095, 131071, 1048575)
HEADS, WIDTH = 3, 32
FREQUENCIES = tuple(10000.0 ** (-2.0 * i / WIDTH) for i in range(WIDTH // 2))


def rotated(x: Floats, heads: int, rotation: Rotation) -> Floats:
    tables = {position: range(position // 64 + 1) for position in POSITIONS}
    with Probe(
        {"x": x},
        lambda g, t: {"y": g.rope(t["x"], heads, rotation)},
        max_rows=len(POSITIONS),
        table_width=len(tables[POSITIONS[-1]]),
    ) as probe:
        steps = probe.step(*(Rows((row,), tables[position], position) for row, position in enumerate(POSITIONS)))
    return steps["y"]


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs of neighbours", "pairs of halves"])
@pytest.mark.parametrize("magnitude", [1.0, 1.1386294361119891])
def test_a_rotation_takes_the_written_roundings(interleaved: bool, magnitude: float) -> None:
    x = numbers(0, len(POSITIONS), HEADS * WIDTH)
    wanted = arithmetic.rope(x.reshape(-1, HEADS, WIDTH), POSITIONS, FREQUENCIES, magnitude, interleaved)
    assert_same_bits(rotated(x, HEADS, Rotation(FREQUENCIES, magnitude, interleaved)), wanted.reshape(x.shape))


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs of neighbours", "pairs of halves"])
def test_dimensions_past_the_frequencies_stay_as_they_are(interleaved: bool) -> None:
    x, few = numbers(1, len(POSITIONS), HEADS * WIDTH), FREQUENCIES[:10]
    found = rotated(x, HEADS, Rotation(few, 1.0, interleaved)).reshape(-1, HEADS, WIDTH)
    assert_same_bits(found[..., 20:], x.reshape(-1, HEADS, WIDTH)[..., 20:])
    assert_same_bits(found, arithmetic.rope(x.reshape(-1, HEADS, WIDTH), POSITIONS, few, 1.0, interleaved))


def test_a_rotation_keeps_lengths_and_turns_by_the_difference_of_positions() -> None:
    """Cosine and sine round to 2^-25, and each half of a pair takes three roundings: 8 x 2^-24 of the pair's length."""
    x = np.tile(numbers(2, 1, WIDTH), (len(POSITIONS), 1))
    pairs = rotated(x, 1, Rotation(FREQUENCIES, 1.0, True)).astype(np.float64).view(np.complex128)
    angles = np.outer(POSITIONS, FREQUENCIES)
    exact = x.astype(np.float64).view(np.complex128) * np.exp(1j * angles)
    assert (np.abs(pairs - exact) <= 8 * 2.0**-24 * np.abs(exact)).all()


def test_position_zero_changes_nothing() -> None:
    x = numbers(3, len(POSITIONS), WIDTH)
    assert_same_bits(rotated(x, 1, Rotation(FREQUENCIES, 1.0, False))[0], x[0])


def test_queries_and_keys_of_one_rotation_share_a_table_and_others_do_not() -> None:
    x = numbers(4, 4, WIDTH)
    first, second = Rotation(FREQUENCIES, 1.0, True), Rotation(FREQUENCIES[::-1], 1.0, True)
    with Probe(
        {"a": x, "b": x, "c": x},
        lambda g, t: {"a": g.rope(t["a"], 1, first), "b": g.rope(t["b"], 1, second), "c": g.rope(t["c"], 1, first)},
        threads=2,
    ) as probe:
        found = probe.step(Rows(range(4), position=7))
    for name, rotation in (("a", first), ("b", second), ("c", first)):
        wanted = arithmetic.rope(x[:, None], range(7, 11), rotation.frequencies, 1.0, True)
        assert_same_bits(found[name], wanted[:, 0])
