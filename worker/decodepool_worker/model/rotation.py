"""Rotary frequencies, with linear and yarn scaling and the file's own factors.

yarn as llama.cpp has it (ggml's rope_yarn): angles blend between interpolated and plain by how many turns a pair makes
in the original context, and cosine and sine grow by 1 + 0.1 ln factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from decodepool_kernels.graph import Rotation
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.shape import RopeShape


def rotation(rope: RopeShape, factors: Sequence[float] | None, *, interleaved: bool) -> Rotation:
    """Return the frequencies of every pair. `factors` is `rope_freqs.weight`: each divides its pair's frequency.
    BadModelFile for a factor that is not above 0.
    """
    pairs = rope.dimension_count // 2
    divisors = [1.0] * pairs if factors is None else factors[:pairs]
    for i, divisor in enumerate(divisors):
        if not divisor > 0:
            raise BadModelFile(f"tensor rope_freqs.weight: element {i} is {divisor:g}, not above 0")
    plain = [rope.base ** (-2.0 * i / rope.dimension_count) / divisor for i, divisor in enumerate(divisors)]
    scaling = rope.scaling
    if scaling.kind == "linear":
        return Rotation(tuple(f / scaling.factor for f in plain), 1.0, interleaved)
    if scaling.kind == "yarn":
        shares = interpolated_shares(rope)
        blended = tuple(f / scaling.factor * share + f * (1.0 - share) for f, share in zip(plain, shares, strict=True))
        return Rotation(blended, scaling.attn_factor * (1.0 + 0.1 * math.log(scaling.factor)), interleaved)
    return Rotation(tuple(plain), scaling.attn_factor, interleaved)


def interpolated_shares(rope: RopeShape) -> list[float]:
    """Return for each pair how much of its angle is interpolated: 1 for slow pairs, 0 for fast ones."""
    scaling, count = rope.scaling, rope.dimension_count
    length = scaling.original_context_length or 0

    def pair_with_turns(turns: float) -> float:
        return count * math.log(length / (turns * 2.0 * math.pi)) / (2.0 * math.log(rope.base))

    low = max(0, math.floor(pair_with_turns(scaling.beta_fast)))
    high = min(count - 1, math.ceil(pair_with_turns(scaling.beta_slow)))
    return [min(max((i - low) / max(0.001, high - low), 0.0), 1.0) for i in range(count // 2)]
