"""Attention's switches: windows, sinks and soft caps take their written roundings, however the work is split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decodepool_kernels.cpu.kv import KV_KINDS

from tests.kernels import arithmetic
from tests.kernels.probe import Floats, Rows, assert_same_bits, numbers
from tests.kernels.test_attention import PAGES, SHAPES, SHUFFLED, TOKENS, Session, poison, prefilled

CAP = 1.5
"""Below the larger scores, which have a deviation of 1."""
SWITCHES: dict[str, dict[str, Any]] = {
    "window": {"window": 100},
    "sinks": {"sinks": True},
    "soft cap": {"soft_cap": CAP},
    "all": {"window": 300, "sinks": True, "soft_cap": CAP},
}
WINDOWS = (1, 2, 63, 64, 65, 128, 511, 512, 513, TOKENS, 1 << 30)


def switched(shape: str = "grouped", **switches: Any) -> Session:
    """Return a session; `sinks` True is some for its heads."""
    if switches.pop("sinks", False):
        switches["sinks"] = numbers(40, SHAPES[shape][0], spread=2.0)
    return Session(SHAPES[shape], 50, **switches)


def awkward(window: int | None) -> list[int]:
    """Return positions about the ends of pages, of groups of pages, and of the first windows that leave tokens out."""
    found = {0, 63, 64, 511, 512, 575, 576, TOKENS - 1}
    if window is not None:
        found |= {edge + off for edge in (window, window + 64, window + 512) for off in (-1, 0, 1)}
    return sorted(position for position in found if 0 <= position < TOKENS)


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("shape", ["one head", "grouped", "wide"])
def test_a_switched_row_takes_the_written_roundings(shape: str, name: str, kind: str) -> None:
    session = switched(shape, **SWITCHES[name])
    with session.probe(kind) as probe:
        found = prefilled(probe, SHUFFLED)
    for position in awkward(session.window):
        assert_same_bits(found[position], session.wanted(kind, position))


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_of_any_length_takes_the_written_roundings(window: int) -> None:
    session = switched("one head", window=window)
    with session.probe("f16") as probe:
        found = prefilled(probe, SHUFFLED)
    for position in awkward(window):
        assert_same_bits(found[position], session.wanted("f16", position))


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("chunk", [1, 3, 17, 100], ids=lambda chunk: f"chunks of {chunk}")
def test_chunks_do_not_matter_to_switches(chunk: int, name: str) -> None:
    session, until = switched(**SWITCHES[name]), 420
    with session.probe("f16") as probe:
        assert_same_bits(prefilled(probe, SHUFFLED, until, chunk), prefilled(probe, SHUFFLED, until))


@pytest.mark.parametrize("kind", KV_KINDS)
def test_what_lies_before_the_window_does_not_matter(kind: str) -> None:
    session, position = switched(window=130), 900
    with session.probe(kind) as probe:
        whole = prefilled(probe, SHUFFLED)
        poison(probe, 0x7FC0FFFF)
        first = position + 1 - 130
        probe.step(Rows(range(first, position), SHUFFLED, first))
        assert_same_bits(probe.step(Rows((position,), SHUFFLED, position))["y"][0], whole[position])


def test_switches_that_hide_nothing_leave_every_bit() -> None:
    nothing = np.full(SHAPES["grouped"][0], -np.inf, np.float32)
    plain = switched()
    hiding_nothing = switched(window=TOKENS, soft_cap=1e29)
    hiding_nothing.sinks = nothing
    with plain.probe("f16") as probe, hiding_nothing.probe("f16") as other:
        assert_same_bits(prefilled(other, range(PAGES)), prefilled(probe, range(PAGES)))


def test_all_switches_together_are_near_f64() -> None:
    """A score is off by its chain's roundings as without switches, and by a soft cap's 6 more; the bound is loose."""
    session = switched("one head", window=300, sinks=True, soft_cap=CAP)
    assert session.sinks is not None
    with session.probe("f32") as probe:
        found = prefilled(probe, SHUFFLED)
    for position in awkward(300):
        seen = slice(max(0, position - 299), position + 1)
        scores = session.k[seen].astype(np.float64) @ session.q[position].astype(np.float64) * session.width**-0.5
        weights = np.exp(CAP * np.tanh(scores / CAP))
        exact = weights @ session.v[seen].astype(np.float64) / (weights.sum() + np.exp(np.float64(session.sinks[0])))
        assert np.abs(found[position] - exact).max() < 1e-6


EVERYWHERE: Floats = np.concatenate(
    [np.linspace(-12, 12, 200_001), np.geomspace(1e-30, 9, 20_001), [0.0, np.inf, -np.inf]]
).astype(np.float32)


@pytest.mark.parametrize("cap", [1.0, 30.0, 50.0])
def test_a_soft_cap_is_within_6_roundings_of_tanh(cap: float) -> None:
    scores = EVERYWHERE * np.float32(cap)
    exact = cap * np.tanh(scores.astype(np.float64) / cap)
    off = np.abs(arithmetic.capped(scores, cap) - exact)
    assert (off <= 6 * 2.0**-24 * np.abs(exact)).all()
