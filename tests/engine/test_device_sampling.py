"""The device's program for drawing, as its twin on the host runs it: against sums of Python's integers, and beside the
other program, whose kept tokens it must share.
"""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
from decodepool_worker.engine.device_sampling import (
    WEIGHT_BITS,
    draw_as_device,
    drawn,
    integer_weights,
    least_weight,
    powers,
    top_p_share,
)
from decodepool_worker.engine.philox import uniform_bits
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Sampled, Sampling
from decodepool_worker.engine.sampling import draw_token
from numpy.typing import NDArray

SAMPLINGS = {
    "plain": Sampling(1.0),
    "hot": Sampling(3.0),
    "cold": Sampling(0.05),
    "top_k": Sampling(0.9, top_k=7),
    "top_p": Sampling(0.9, top_p=0.8),
    "min_p": Sampling(1.1, min_p=0.05),
    "all three": Sampling(0.8, top_k=30, top_p=0.9, min_p=0.02),
    "a share of nothing": Sampling(1.0, top_p=0.0),
    "the best alone": Sampling(2.0, top_k=1),
    "more than there are": Sampling(1.0, top_k=10_000),
    "min_p of all": Sampling(1.0, min_p=1.0),
}


def rows() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(11)
    never = random.standard_normal(300).astype(np.float32)
    never[::3] = -np.inf
    return {
        "usual": (2 * random.standard_normal(500)).astype(np.float32),
        "ties": random.integers(0, 4, 400).astype(np.float32),
        "all equal": np.zeros(64, np.float32),
        "never": never,
        "far apart": np.linspace(-1e30, 1e30, 50).astype(np.float32),
        "one": np.zeros(1, np.float32),
    }


ROWS = rows()


def by_the_text(logits: NDArray[np.float32], draw: Draw) -> int:
    """Steps 3 to 7, a token at a time, in Python's integers."""
    sampling, largest = draw.sampling, float(logits.max())
    weights = [int(w) for w in integer_weights(logits, largest, sampling.temperature)]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    if 0 < sampling.top_k < len(order):
        order = order[: sampling.top_k]
    share = top_p_share(sampling.top_p)
    if share < 2**32:
        target, so_far = max(1, sum(weights[t] for t in order) * share // 2**32), 0
        kept: list[int] = []
        while so_far < target:
            kept.append(order[len(kept)])
            so_far += weights[kept[-1]]
        order = kept
    chosen = sorted(token for token in order if weights[token] >= least_weight(sampling.min_p))
    wanted = uniform_bits(draw.seed, draw.position) * sum(weights[t] for t in chosen) // 2**64
    for token in chosen:
        wanted -= weights[token]
        if wanted < 0:
            return token
    raise AssertionError("nothing was drawn")


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("row", ROWS)
def test_it_draws_what_its_text_says(row: str, sampling: Sampling) -> None:
    for position in range(40):
        draw = Draw(sampling, 2**63 + 5, position, [])
        assert draw_as_device(ROWS[row], draw) == Sampled(by_the_text(ROWS[row], draw))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_tokens_come_as_often_as_by_the_other_program(sampling: Sampling) -> None:
    logits = (1.5 * np.random.default_rng(3).standard_normal(40)).astype(np.float32)
    count = 4000
    found, other = (
        Counter(getattr(draw(logits, Draw(sampling, 9, position, [])), "token", None) for position in range(count))
        for draw in (draw_as_device, draw_token)
    )
    assert set(found) | set(other) <= set(range(40))
    for token in set(found) | set(other):
        expected = max(found[token], other[token])
        assert abs(found[token] - other[token]) <= 6 * math.sqrt(expected) + 3


def test_powers_are_within_1e_12_and_the_best_weighs_all() -> None:
    getcontext().prec = 40
    x = -np.concatenate([np.random.default_rng(1).random(2000) * 44, np.arange(45) * 0.5 * math.log(2)])
    for value, power in zip(x, powers(x), strict=True):
        exact = Decimal(float(value)).exp() * 2**WEIGHT_BITS
        assert abs(Fraction(float(power)) / Fraction(exact) - 1) < Fraction(1, 10**12)
    assert integer_weights(np.zeros(1, np.float32), 0.0, 1.0).tolist() == [1 << WEIGHT_BITS]


def test_no_temperature_overflows() -> None:
    logits = np.array([3e38, -3e38, 0, -np.inf], np.float32)
    assert integer_weights(logits, float(logits[0]), 1e-300).tolist() == [1 << WEIGHT_BITS, 0, 0, 0]
    assert integer_weights(logits[2:], 0.0, 1e6).tolist() == [1 << WEIGHT_BITS, 0]


def test_the_last_of_the_random_bits_never_picks_what_weighs_nothing() -> None:
    weights = np.array([0, 5, 0, 7, 0], np.uint64)
    picked = [drawn(weights, Sampling(1.0), bits) for bits in (0, 2**64 * 5 // 12, 2**64 * 5 // 12 + 1, 2**64 - 1)]
    assert picked == [1, 1, 3, 3]


def test_bias_and_penalties_are_those_of_the_other_program() -> None:
    logits = (2 * np.random.default_rng(5).standard_normal(50)).astype(np.float32)
    for sampling in (
        Sampling(0.0, logit_bias=((7, 50.0),)),
        Sampling(0.0, repetition_penalty=50.0),
        Sampling(1e-3, presence_penalty=2.0, frequency_penalty=2.0),
    ):
        draw = Draw(sampling, 1, 4, [int(logits.argmax())] * 3)
        assert draw_as_device(logits, draw) == draw_token(logits, draw)


def test_log_probabilities_and_faults_are_those_of_the_other_program() -> None:
    logits = (2 * np.random.default_rng(5).standard_normal(50)).astype(np.float32)
    draw = Draw(Sampling(0.0), 1, 4, [], top_logprobs=5)
    assert draw_as_device(logits, draw) == draw_token(logits, draw)
    logits[3] = np.nan
    outcome = draw_as_device(logits, draw)
    assert isinstance(outcome, NonFiniteLogits)
    assert outcome == draw_token(logits, draw)
