"""One token drawn from one row of logits. A pure function of (logits, draw): no batch, no row number, no state.

The program, in order, in float64 unless said:

1. The largest raw logit must be finite (NaN and +inf are faults; -inf means "never", unless all are).
2. Log-probabilities, where asked for: log-softmax of the raw logits, before everything below, as OpenAI's are.
3. logit_bias is added. Then for each token of the history: the repetition penalty divides a logit above 0, multiplies
   another; after it, presence + frequency x count is taken off. The history is all of the session, prompt included.
4. temperature 0: the largest logit, the lowest id among equals. Done.
5. Weight of a token: exp((logit - largest) / temperature). The best weighs 1, so no temperature overflows.
6. top_k keeps the k largest logits, the lower id first among equals. top_p keeps the fewest of those, in that order,
   that reach p of their weight, at least one. min_p drops what weighs less than min_p (the best weighs 1).
7. The token is the first at which the running sum of weights exceeds uniform x their total.

Sums run one by one, never pairwise: in the order of step 6 where top_k or top_p is set, else by ascending id. One
exception: the weight that top_p takes its part of is, without top_k, summed by ascending id. So no result depends on
how much was sorted, and partial sorts make top_k and top_p fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from decodepool_worker.engine.philox import uniform
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Sampled, Sampling

GROUP_LOGITS = 32
"""Logits of which the largest is found before the largest of all are: sorting a row costs more than all else."""

Floats = NDArray[np.float64]
Row = NDArray[np.float32] | NDArray[np.float64]


def draw_token(logits: NDArray[np.float32], draw: Draw) -> Sampled | NonFiniteLogits:
    """Draw a token from raw logits `[vocabulary]`, which are left as they are."""
    best = int(logits.argmax())  # of equals the first; of rows with NaN, a NaN
    if not math.isfinite(logits[best]):
        return NonFiniteLogits(f"logits of token {draw.position} are not finite: {logits[best]} at id {best}")
    sampling = draw.sampling
    adjusted = adjusted_logits(logits, sampling, draw.history)
    if adjusted is not logits:
        best = int(adjusted.argmax())
    token = best
    if sampling.temperature > 0:
        token = _draw(adjusted, float(adjusted[best]), sampling, uniform(draw.seed, draw.position))
    if draw.top_logprobs is None:
        return Sampled(token)
    return with_logprobs(logits, token, draw.top_logprobs)


def adjusted_logits(logits: NDArray[np.float32], sampling: Sampling, history: Sequence[int]) -> Row:
    """Return logits after bias and penalties: a float64 copy, or the very same array if there is nothing to do."""
    penalised = sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    if not sampling.logit_bias and not (penalised and len(history)):
        return logits
    adjusted = logits.astype(np.float64)
    for token, bias in sampling.logit_bias:
        adjusted[token] += bias
    if penalised and len(history):
        counts = np.bincount(np.asarray(history, dtype=np.intp), minlength=logits.size)
        seen = np.flatnonzero(counts > 0)
        values = adjusted[seen]
        repetition = sampling.repetition_penalty
        values = np.where(values > 0, values / repetition, values * repetition)
        adjusted[seen] = values - (sampling.presence_penalty + sampling.frequency_penalty * counts[seen])
    return adjusted


def _draw(logits: Row, largest: float, sampling: Sampling, chance: float) -> int:
    """Draw by weight. Where order matters values are sorted, and never ids: an id is found by its rank at the end."""
    weigh = partial(_weights, largest=largest, temperature=sampling.temperature)
    ordered: Row | None = None
    if 0 < sampling.top_k < logits.size:
        ordered = _largest_values(logits, sampling.top_k)
        weights = weigh(ordered)
        if sampling.top_p < 1:
            sums = weights.cumsum()
            weights = weights[: _reach(sums, sampling.top_p * sums[-1])]
    else:
        weights = weigh(logits)
        if sampling.top_p < 1:
            ordered, weights = _nucleus(logits, weights, sampling.top_p, weigh)
    if sampling.min_p > 0:
        weights[weights < sampling.min_p] = 0
    sums = weights.cumsum(out=weights)
    # The total is at least 1 and `chance` at most 1 - 2**-53: their product is always rounded to less than the total.
    index = int(sums.searchsorted(chance * sums[-1], side="right"))
    return index if ordered is None else _id_of_rank(logits, ordered, index)


def _nucleus(logits: Row, weights: Floats, top_p: float, weigh: Callable[[Row], Floats]) -> tuple[Row, Floats]:
    """Return logits, largest first, and the weights of as many of them as reach `top_p` of the whole row's weight.

    What weighs less than an even share of the part left out is not in it, for all such together could not fill that
    part: it need not be sorted. Half of that share, for rounding; and all, where rounding still matters (top_p near 1).
    """
    total = weights.cumsum()[-1]
    for candidates in (logits.compress(weights >= (1 - top_p) / 2 * total / logits.size), logits):
        ordered = _largest_values(candidates, candidates.size)
        masses = weigh(ordered)
        sums = masses.cumsum()
        if sums[-1] >= top_p * total:
            break
    return ordered, masses[: _reach(sums, top_p * total)]


def _reach(sums: Floats, wanted: float) -> int:
    """Return how many terms it takes to reach `wanted`, at least one; all of them if they never do."""
    return int(sums.searchsorted(wanted, side="left")) + 1


def _weights(logits: Row, largest: float, temperature: float) -> Floats:
    with np.errstate(over="ignore", under="ignore"):
        weights: Floats = np.subtract(logits, largest, dtype=np.float64)
        weights /= temperature  # to -inf at worst, which weighs 0
        np.exp(weights, out=weights)
    return weights


def _largest_values(logits: Row, count: int) -> Row:
    """Return the `count` largest logits, largest first."""
    values = logits.compress(logits >= _floor_of_largest(logits, count))
    values.sort()
    return values[::-1][:count]


def _floor_of_largest(logits: Row, count: int) -> float:
    """Return a value that the `count` largest logits are not below, and few others reach: of the largest of each of
    many groups, the one at rank `count`. The smallest logit where there are fewer groups.
    """
    groups = logits.size // GROUP_LOGITS
    if count > groups:
        return float(logits.min())
    largest = logits[: groups * GROUP_LOGITS].reshape(GROUP_LOGITS, groups).max(axis=0)
    largest.partition(groups - count)
    return float(largest[groups - count])


def _id_of_rank(logits: Row, ordered: Row, rank: int) -> int:
    """Return the id of the logit at `rank` of the descending order, in which equals go by id."""
    value = ordered[rank]
    equals_before = rank - int(np.flatnonzero(ordered == value)[0])
    return int(np.flatnonzero(logits == value)[equals_before])


def _largest_ids(logits: NDArray[np.float32], count: int) -> list[int]:
    """Return the ids of the `count` largest logits, largest first, lower ids first among equals; none at -inf."""
    if count == 0:
        return []
    candidates = np.flatnonzero(logits >= _floor_of_largest(logits, count))
    ids = candidates[np.argsort(-logits[candidates], kind="stable")][:count]
    return [int(index) for index in ids if logits[index] > -np.inf]


def with_logprobs(logits: NDArray[np.float32], token: int, count: int) -> Sampled:
    """Return a drawn token with its log-probability and those of the `count` best, from raw logits."""
    largest = float(logits.max())
    weights = _weights(logits, largest, 1.0)
    shift = largest + math.log(weights.cumsum(out=weights)[-1])
    top = tuple((index, float(logits[index]) - shift) for index in _largest_ids(logits, min(count, logits.size)))
    return Sampled(token, float(logits[token]) - shift, top)


RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-2, 1e2),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "logit_bias": (-100.0, 100.0),
}
"""Of each number of a `Sampling`: wide enough for any use, narrow enough that no sum or product of them leaves
float64; OpenAI's where it has some. `logit_bias` is the range of one bias.
"""


def check_sampling(sampling: Sampling, vocabulary_size: int) -> None:
    """Raise ValueError, naming field and value, for what `draw_token` was not made for, NaN and infinities included."""
    for field, bounds in RANGES.items():
        if field != "logit_bias":
            _check_range(field, getattr(sampling, field), bounds)
    top_k = sampling.top_k
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 0:
        raise ValueError(f"top_k: {top_k!r} is not a count; 0 keeps all tokens")
    seen = set()
    for token, bias in sampling.logit_bias:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary_size:
            raise ValueError(f"logit_bias: {token!r} is not a token of the vocabulary of {vocabulary_size}")
        if token in seen:
            raise ValueError(f"logit_bias: token {token} is given twice")
        seen.add(token)
        _check_range(f"logit_bias[{token}]", bias, RANGES["logit_bias"])


def _check_range(field: str, value: object, bounds: tuple[float, float]) -> None:
    low, high = bounds
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{field}: {value!r} is not a number from {low:g} to {high:g}")
