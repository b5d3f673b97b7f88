"""The parts of a model's shape: a layer, the rows it keeps, its rope, its experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decodepool_sizing.kv import KVType

RopeScalingKind = Literal["none", "linear", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How positions are stretched past the context a model was trained with.

    `linear` divides every angle by `factor`. `yarn` blends by frequency, from `beta_fast` turns down to `beta_slow`,
    and multiplies cosines and sines by `attn_factor * (1 + 0.1 ln factor)`; `log_multiplier` is deepseek2's own.
    """

    kind: RopeScalingKind = "none"
    factor: float = 1.0
    original_context_length: int | None = None
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_multiplier: float = 0.0


@dataclass(frozen=True, slots=True)
class RopeShape:
    """Rotary positions: the dimensions that turn, the base of their frequencies, their scaling."""

    dimension_count: int
    base: float
    scaling: RopeScaling = RopeScaling()


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A mixture of experts: how many there are, how many a token uses, their widths (0: no shared expert)."""

    count: int
    used_count: int
    feed_forward_length: int
    shared_feed_forward_length: int = 0


@dataclass(frozen=True, slots=True)
class CacheRows:
    """One kind of row that a layer keeps: `heads` vectors of `length` elements, a row for each `tokens_per_row` tokens.

    `window` None keeps the whole context; otherwise only the rows of the last `window` tokens.
    """

    holds: str
    heads: int
    length: int
    tokens_per_row: int = 1
    window: int | None = None

    def row_bytes(self, kv_type: KVType) -> int:
        """Return the bytes of one row; ValueError where `kv_type` cannot hold vectors of this length."""
        return self.heads * kv_type.vector_bytes(self.length)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer of the trunk. Recurrent layers have no heads of their own to speak of; their state is `state_bytes`,
    fixed.
    """

    head_count: int
    kv_head_count: int
    key_length: int
    value_length: int
    feed_forward_length: int
    window: int | None = None
    cache: tuple[CacheRows, ...] = ()
    state_bytes: int = 0
    experts: bool = False
