"""The program by which a GPU draws, as the device runs it (sources/draw.cu) and as this module does, to the bit.

It differs from `sampling` in how a row is summed: a running sum over a vocabulary is no work for a thousand threads. So
weights are integers, whose sums are the same in every order. For a row of logits, its largest one finite:

1. logit_bias and penalties as in `sampling`; rows with either are drawn here, from the logits that the device left.
2. temperature 0: the largest logit, the lowest id among equals. Done.
3. Weight of a token: 2^44 e^x, rounded down to an integer, for x = (logit - largest) / temperature in float64, and e^x
   as `powers` has it: within 1e-12, and the same bits wherever IEEE arithmetic is. The best weighs 2^44.
4. top_k keeps the k largest weights, the lower id first among equals.
5. top_p keeps the fewest of those, in that order, whose sum reaches max(1, floor(P sum / 2^32)), P = round(2^32 top_p).
6. min_p drops weights below min_p 2^44, rounded up.
7. The token is the first by ascending id at which the running sum of what is kept exceeds floor(U sum / 2^64), U being
   the first 64 bits of Philox at (seed, position), as in `philox`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from decodepool_worker.engine.philox import uniform_bits
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Sampled, Sampling
from decodepool_worker.engine.sampling import adjusted_logits, with_logprobs

WEIGHT_BITS = 44
"""Of the best token. 2^18 of these stay below 2^63."""
LEAST_EXPONENT = -64
"""Powers of two below this leave no weight."""
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
"""ln 2 as a sum; the first has so few bits that its product with a small integer is exact."""
COEFFICIENTS = tuple(1.0 / math.factorial(n) for n in range(10, -1, -1))
"""Of e^r, the highest power first."""
TOP_P_BITS = 32

Weights = NDArray[np.uint64]
Row = NDArray[np.float32] | NDArray[np.float64]


def draw_as_device(logits: NDArray[np.float32], draw: Draw) -> Sampled | NonFiniteLogits:
    """Draw a token from raw logits `[vocabulary]` by the device's program."""
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        return NonFiniteLogits(f"logits of token {draw.position} are not finite: {logits[best]} at id {best}")
    adjusted = adjusted_logits(logits, draw.sampling, draw.history)
    token = int(adjusted.argmax())
    if draw.sampling.temperature > 0:
        weights = integer_weights(adjusted, float(adjusted[token]), draw.sampling.temperature)
        token = drawn(weights, draw.sampling, uniform_bits(draw.seed, draw.position))
    return Sampled(token) if draw.top_logprobs is None else with_logprobs(logits, token, draw.top_logprobs)


def integer_weights(logits: Row, largest: float, temperature: float) -> Weights:
    """Return each token's weight."""
    with np.errstate(over="ignore"):
        x = np.subtract(logits, largest, dtype=np.float64) / temperature
    weights: Weights = powers(np.maximum(x, LEAST_EXPONENT * math.log(2.0))).astype(np.uint64)
    return weights


def powers(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 2^44 e^x for x from LEAST_EXPONENT ln 2 to 0: multiplied and added one by one, nothing fused."""
    turns = np.rint(x * (1.0 / math.log(2.0)))
    r = x - turns * LN2_HIGH - turns * LN2_LOW
    power = np.full_like(r, COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        power *= r
        power += coefficient
    return np.ldexp(power, turns.astype(np.int32) + WEIGHT_BITS)


def top_p_share(top_p: float) -> int:
    """Return P of step 5; 2^32 keeps all."""
    return round(top_p * 2.0**TOP_P_BITS)


def least_weight(min_p: float) -> int:
    """Return the least weight that step 6 keeps."""
    return math.ceil(min_p * 2.0**WEIGHT_BITS)


def drawn(weights: Weights, sampling: Sampling, bits: int) -> int:
    """Return the token that 64 random bits pick."""
    kept = weights.copy()
    if 0 < sampling.top_k < weights.size:
        _keep_largest(kept, sampling.top_k)
    share = top_p_share(sampling.top_p)
    if share < 1 << TOP_P_BITS:
        _keep_share(kept, share)
    kept[kept < least_weight(sampling.min_p)] = 0
    sums = kept.cumsum(dtype=np.uint64)
    return int(sums.searchsorted(np.uint64(bits * int(sums[-1]) >> 64), side="right"))


def _keep_largest(weights: Weights, count: int) -> None:
    least = np.partition(weights, weights.size - count)[weights.size - count]
    _keep(weights, least, count - int(np.count_nonzero(weights > least)))


def _keep_share(weights: Weights, share: int) -> None:
    target = max(1, int(weights.sum(dtype=np.uint64)) * share >> TOP_P_BITS)
    ordered = np.sort(weights)[::-1]
    sums = ordered.cumsum(dtype=np.uint64)
    least = ordered[int(sums.searchsorted(np.uint64(target), side="left"))]
    missing = target - int(weights[weights > least].sum(dtype=np.uint64))
    _keep(weights, least, -(-missing // int(least)))


def _keep(weights: Weights, least: np.uint64, equals: int) -> None:
    """Zero what is below `least`, and all but the first `equals` of those that equal it."""
    weights[weights < least] = 0
    weights[np.flatnonzero(weights == least)[equals:]] = 0
