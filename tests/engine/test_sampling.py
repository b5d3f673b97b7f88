from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from decodepool_worker.engine import sampling as sampling_module
from decodepool_worker.engine.philox import uniform
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Sampled, Sampling
from decodepool_worker.engine.sampling import check_sampling, draw_token
from numpy.typing import NDArray

VOCABULARY = 1000
GREEDY = Sampling(temperature=0)

Logits = NDArray[np.float32]


def logits_of(*values: float) -> Logits:
    return np.array(values, dtype=np.float32)


def random_logits(seed: int = 0, size: int = VOCABULARY, ties: bool = False) -> Logits:
    values = np.random.default_rng(seed).standard_normal(size) * 3
    return (np.round(values) if ties else values).astype(np.float32)


def draw(logits: Logits, sampling: Sampling, position: int = 0, seed: int = 1, history: tuple[int, ...] = ()) -> int:
    sampled = draw_token(logits, Draw(sampling, seed, position, history))
    assert isinstance(sampled, Sampled)
    return sampled.token


def plainly(logits: Logits, sampling: Sampling, chance: float) -> int:
    """The program of sampling.py again, token by token in Python: no partial sorts, no vectors."""
    largest = max(logits)
    weight = {i: float(np.exp((float(z) - float(largest)) / sampling.temperature)) for i, z in enumerate(logits)}
    order = sorted(weight, key=lambda i: (-logits[i], i))
    whole = sum(weight.values()) if not 0 < sampling.top_k < len(logits) else None
    if whole is None:
        order = order[: sampling.top_k]
        whole = sum(weight[i] for i in order)
    if sampling.top_p < 1:
        mass, count = 0.0, 0
        for i in order:
            mass, count = mass + weight[i], count + 1
            if mass >= sampling.top_p * whole:
                break
        order = order[:count]
    elif len(order) == len(logits):
        order.sort()
    kept = [i for i in order if weight[i] >= sampling.min_p]
    threshold, mass = chance * sum(weight[i] for i in kept), 0.0
    for i in kept:
        mass += weight[i]
        if mass > threshold:
            return i
    return kept[-1]


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 7, 200, VOCABULARY, VOCABULARY + 1])
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 0.5, 0.95, 1 - 1e-12, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
def test_every_draw_is_that_of_the_program_written_out_plainly(
    ties: bool, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    sampling = Sampling(temperature, top_k, top_p, min_p)
    logits = random_logits(ties=ties)
    for position in range(6):
        assert draw(logits, sampling, position) == plainly(logits, sampling, uniform(1, position))


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert draw(logits_of(0, 5, 1, 5, 5), GREEDY) == 1


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = random_logits()
    first = [draw(logits, Sampling(), position) for position in range(50)]
    assert [draw(logits.copy(), Sampling(), position) for position in reversed(range(50))] == first[::-1]
    assert [draw(logits, Sampling(), position, seed=2) for position in range(50)] != first


def test_draws_follow_the_distribution() -> None:
    probabilities = np.array([0.5, 0.25, 0.15, 0.1])
    logits = np.log(probabilities).astype(np.float32)
    counts = Counter(draw(logits, Sampling(), position) for position in range(20_000))
    expected = probabilities * 20_000
    chi_square = sum((counts[i] - expected[i]) ** 2 / expected[i] for i in range(4))
    assert chi_square < 16.3  # 3 degrees of freedom: exceeded once in a thousand seeds, and this seed is fixed


def test_logits_are_left_as_they_are() -> None:
    logits = random_logits()
    before = logits.tobytes()
    draw(logits, Sampling(0.5, 10, 0.9, 0.1, 1.3, 0.5, 0.5, ((3, 2.0),)), history=(1, 2, 2))
    assert logits.tobytes() == before


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-38, 1e-45, 5e-324])
@pytest.mark.parametrize("top_k", [0, 1, VOCABULARY, VOCABULARY + 1])
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 1.0])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "all but two"])
def test_tiny_temperatures_draw_what_greedy_draws(temperature: float, top_k: int, top_p: float, masked: bool) -> None:
    logits = random_logits()
    if masked:
        logits[np.isin(np.arange(VOCABULARY), (17, 400), invert=True)] = -np.inf
    sampling = Sampling(temperature, top_k, top_p)
    assert {draw(logits, sampling, position) for position in range(20)} == {draw(logits, GREEDY)}


def test_a_huge_temperature_draws_evenly_from_what_is_allowed() -> None:
    logits = random_logits()
    logits[10:] = -np.inf
    assert {draw(logits, Sampling(1e6), position) for position in range(300)} == set(range(10))


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(top_p=0.9), Sampling(top_k=1)], ids=repr)
@pytest.mark.parametrize(
    "values",
    [(0, math.nan, 1), (0, math.inf, 1), (math.nan, math.inf, -math.inf), (-math.inf,) * 3, (math.nan,) * 3],
    ids=repr,
)
def test_rows_without_a_largest_finite_logit_are_a_fault(values: tuple[float, ...], sampling: Sampling) -> None:
    outcome = draw_token(logits_of(*values), Draw(sampling, seed=1, position=9, history=()))
    assert isinstance(outcome, NonFiniteLogits)
    assert "9" in outcome.message


@pytest.mark.parametrize("chance_position", range(0, 40, 5))
def test_a_masked_token_is_never_drawn(chance_position: int) -> None:
    logits = logits_of(-math.inf, 0, -math.inf, 0, -math.inf)
    assert draw(logits, Sampling(), chance_position) in (1, 3)


@pytest.mark.parametrize(("chance", "token"), [(0.0, 1), (1 - 2**-53, 3)], ids=["least", "largest"])
@pytest.mark.parametrize("shift", [0.0, 1e-3, 30.0])
def test_the_ends_of_the_uniform_range_draw_the_first_and_last_allowed(
    monkeypatch: pytest.MonkeyPatch, chance: float, token: int, shift: float
) -> None:
    monkeypatch.setattr(sampling_module, "uniform", lambda _seed, _position: chance)
    assert draw(logits_of(-math.inf, shift, -math.inf, 0, -math.inf), Sampling()) == token


def test_min_p_of_one_keeps_the_best_alone() -> None:
    logits = random_logits()
    assert {draw(logits, Sampling(min_p=1.0), position) for position in range(20)} == {int(logits.argmax())}


def test_repetition_penalty_divides_above_zero_and_multiplies_below() -> None:
    logits = logits_of(4, 3, -1, -1.5)
    assert draw(logits, replace(GREEDY, repetition_penalty=2), history=(0,)) == 1
    assert draw(logits[2:], replace(GREEDY, repetition_penalty=2), history=(0,)) == 1


def test_presence_counts_once_and_frequency_each_time() -> None:
    logits = logits_of(3, 2.5, 1.2)
    assert draw(logits, replace(GREEDY, presence_penalty=1), history=(0, 0, 0, 1)) == 0
    assert draw(logits, replace(GREEDY, frequency_penalty=0.6), history=(0, 0, 0, 1)) == 1
    assert draw(logits, replace(GREEDY, frequency_penalty=0.6), history=(0, 0, 1, 1, 1)) == 0


def test_bias_comes_before_penalties() -> None:
    logits = logits_of(1, 0)
    sampling = replace(GREEDY, logit_bias=((1, 1.5),), repetition_penalty=2)
    assert draw(logits, sampling) == 1
    assert draw(logits, sampling, history=(1,)) == 0  # 1.5 / 2 is below 1; bias after the penalty would leave 1.5


def test_history_may_be_any_sequence() -> None:
    logits = random_logits()
    sampling = Sampling(repetition_penalty=1.5)
    as_list = draw_token(logits, Draw(sampling, 1, 0, [1, 2, 3]))
    as_range = draw_token(logits, Draw(sampling, 1, 0, range(1, 4)))
    assert as_list == as_range


def test_logprobs_are_the_log_softmax_of_raw_logits() -> None:
    logits = random_logits()
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    sampling = Sampling(0.7, 5, 0.9, 0.0, 1.2, 0.0, 0.0, ((4, 50.0),))
    sampled = draw_token(logits, Draw(sampling, 1, 0, (1, 2), top_logprobs=5))
    assert isinstance(sampled, Sampled)
    assert sampled.token == 4
    assert sampled.logprob == pytest.approx(exact[4], rel=1e-12)
    assert [token for token, _ in sampled.top] == list(np.argsort(-logits, kind="stable")[:5])
    assert [value for _, value in sampled.top] == pytest.approx([exact[token] for token, _ in sampled.top], rel=1e-12)


@pytest.mark.parametrize(("wanted", "found"), [(0, []), (1, [1]), (3, [1, 3, 0]), (9, [1, 3, 0])])
def test_top_logprobs_list_lower_ids_first_and_no_banned_tokens(wanted: int, found: list[int]) -> None:
    sampled = draw_token(logits_of(0, 2, -math.inf, 2), Draw(GREEDY, 1, 0, (), top_logprobs=wanted))
    assert isinstance(sampled, Sampled)
    assert [token for token, _ in sampled.top] == found
    assert sampled.logprob is not None
    assert math.isfinite(sampled.logprob)


def test_many_equal_logprobs_are_listed_by_id() -> None:
    logits = random_logits(ties=True)
    sampled = draw_token(logits, Draw(GREEDY, 1, 0, (), top_logprobs=300))
    assert isinstance(sampled, Sampled)
    assert [token for token, _ in sampled.top] == sorted(range(VOCABULARY), key=lambda i: (-logits[i], i))[:300]


def test_no_logprobs_unless_asked_for() -> None:
    assert draw_token(random_logits(), Draw(GREEDY, 1, 0, ())) == Sampled(int(random_logits().argmax()))


SOUND = [
    Sampling(),
    GREEDY,
    Sampling(1e-45, 0, 0.0, 1.0),
    Sampling(1e6, VOCABULARY + 1, 1.0, 0.0),
    Sampling(logit_bias=((0, -100.0), (VOCABULARY - 1, 100))),
]


@pytest.mark.parametrize("sampling", SOUND, ids=repr)
def test_sound_sampling_passes(sampling: Sampling) -> None:
    check_sampling(sampling, VOCABULARY)


@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -3.0, 1e7, True, "0.7", None], ids=repr)
def test_values_out_of_range_are_named_with_their_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}: .*{value!r}"):
        check_sampling(replace(Sampling(), **{field: value}), VOCABULARY)  # type: ignore[arg-type]


@pytest.mark.parametrize("top_k", [-1, 1.5, True, None], ids=repr)
def test_top_k_is_a_count(top_k: object) -> None:
    with pytest.raises(ValueError, match=r"^top_k: "):
        check_sampling(replace(Sampling(), top_k=top_k), VOCABULARY)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bias", "named"),
    [
        (((VOCABULARY, 1.0),), str(VOCABULARY)),
        (((-1, 1.0),), "-1"),
        (((2**63, 1.0),), str(2**63)),
        (((True, 1.0),), "True"),
        (((5, 1.0), (5, 2.0)), "5 is given twice"),
        (((5, math.nan),), "nan"),
        (((5, -math.inf),), "-inf"),
        (((5, 100.5),), "100.5"),
    ],
    ids=str,
)
def test_biases_name_the_token_or_value_that_is_wrong(bias: tuple[tuple[int, float], ...], named: str) -> None:
    with pytest.raises(ValueError, match=f"^logit_bias.*{named}"):
        check_sampling(Sampling(logit_bias=bias), VOCABULARY)
