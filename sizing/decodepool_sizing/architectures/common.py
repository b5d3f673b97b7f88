"""What architectures share, read once, and the pieces their own files are put together from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from decodepool_sizing import limits
from decodepool_sizing.header import Header
from decodepool_sizing.keys import Keys
from decodepool_sizing.layers import CacheRows, ExpertShape, LayerShape, RopeScaling, RopeShape

F32_BYTES = 4
DEFAULT_ROPE_BASE = 10000.0


@dataclass(frozen=True, slots=True)
class Common:
    """The numbers every architecture has, as its own rules get them; `attention_scale` is the usual one, over the key
    length.
    """

    header: Header
    keys: Keys
    block_count: int
    prediction_blocks: int
    embedding_length: int
    head_counts: tuple[int, ...]
    kv_head_counts: tuple[int, ...]
    key_length: int
    value_length: int
    feed_forward_lengths: tuple[int, ...]
    experts: ExpertShape | None
    rope: RopeShape

    @property
    def attention_scale(self) -> float:
        """`attention.scale` where it is given and not zero, else 1 over the root of the key length."""
        given = self.keys.real("attention.scale", 0.0, least=-1e-30)
        return given or float(self.key_length**-0.5)

    def has_tensor(self, layer: int, name: str) -> bool:
        """Say whether the file has `blk.LAYER.NAME`."""
        return f"blk.{layer}.{name}" in self.header.by_name


@dataclass(frozen=True, slots=True)
class Own:
    """What an architecture's own rules add to the common numbers."""

    layers: tuple[LayerShape, ...]
    attention_scale: float
    rope: RopeShape
    window_rope: RopeShape | None = None
    per_layer_embedding_length: int = 0


Rules: TypeAlias = Callable[[Common], Own]


def read_common(header: Header) -> Common:
    """Read what every architecture has. BadModelFile names the key."""
    keys = Keys(header.metadata, header.architecture)
    predictions = keys.count("nextn_predict_layers", 0, least=0, most=limits.BLOCKS)
    blocks = keys.count("block_count", most=limits.BLOCKS) - predictions
    if blocks < 1:
        raise keys.fault("block_count", f"nothing is left of it after {predictions} prediction blocks")
    embedding = keys.count("embedding_length")
    heads = keys.counts("attention.head_count", blocks, least=0)
    if not any(heads):
        raise keys.fault("attention.head_count", "0 for every layer")
    usual = embedding // max(heads)
    key_length = keys.count("attention.key_length", usual)
    return Common(
        header=header,
        keys=keys,
        block_count=blocks,
        prediction_blocks=predictions,
        embedding_length=embedding,
        head_counts=heads,
        kv_head_counts=_kv_head_counts(keys, blocks, heads),
        key_length=key_length,
        value_length=keys.count("attention.value_length", usual),
        feed_forward_lengths=keys.counts("feed_forward_length", blocks, 0, least=0),
        experts=_experts(keys),
        rope=read_rope(keys, key_length),
    )


def read_rope(keys: Keys, key_length: int) -> RopeShape:
    """Read the rope of full-attention layers."""
    turned = keys.count("rope.dimension_count", key_length)
    if turned % 2:
        raise keys.fault("rope.dimension_count", f"{turned} is odd; dimensions turn in pairs")
    if turned > key_length:
        raise keys.fault("rope.dimension_count", f"{turned} is more than the key length, {key_length}")
    return RopeShape(turned, keys.real("rope.freq_base", DEFAULT_ROPE_BASE, least=1.0), _scaling(keys))


def read_window_rope(keys: Keys, dimension_count: int) -> RopeShape:
    """Read the rope of layers with a window: its own base, never scaled."""
    return RopeShape(dimension_count, keys.real("rope.freq_base_swa", DEFAULT_ROPE_BASE, least=1.0))


def attention_layers(common: Common, windows: Sequence[int | None]) -> tuple[LayerShape, ...]:
    """Return layers of ordinary attention: a row of keys and one of values a token, all of them or a window's worth."""
    return tuple(
        LayerShape(
            head_count=common.head_counts[i],
            kv_head_count=common.kv_head_counts[i],
            key_length=common.key_length,
            value_length=common.value_length,
            feed_forward_length=common.feed_forward_lengths[i],
            window=window,
            cache=keys_and_values(common.kv_head_counts[i], common.key_length, common.value_length, window),
            experts=common.has_tensor(i, "ffn_gate_inp.weight"),
        )
        for i, window in enumerate(windows)
    )


def keys_and_values(heads: int, key_length: int, value_length: int, window: int | None = None) -> tuple[CacheRows, ...]:
    """Return the rows of ordinary attention."""
    return CacheRows("keys", heads, key_length, window=window), CacheRows("values", heads, value_length, window=window)


def without_attention(layer: LayerShape, state_bytes: int) -> LayerShape:
    """Return a recurrent layer: no rows, a state of fixed size."""
    return replace(layer, head_count=0, kv_head_count=0, window=None, cache=(), state_bytes=state_bytes)


def windows_by_pattern(common: Common, period: int | None) -> tuple[int | None, ...]:
    """Return a window a layer, from a list of booleans, or from a period P: all layers but each P-th have one.

    The file's `attention.sliding_window_pattern` wins over `period`; where neither is there, BadModelFile.
    """
    keys = common.keys
    window = keys.count("attention.sliding_window", 0, least=0, most=limits.CONTEXT_TOKENS)
    if not window:
        return (None,) * common.block_count
    flags = keys.flags("attention.sliding_window_pattern", common.block_count)
    if flags is None:
        every = keys.count("attention.sliding_window_pattern", period, most=limits.BLOCKS)
        flags = tuple((i + 1) % every != 0 for i in range(common.block_count))
    return tuple(window if flag else None for flag in flags)


def _kv_head_counts(keys: Keys, blocks: int, heads: tuple[int, ...]) -> tuple[int, ...]:
    if not keys.has("attention.head_count_kv"):
        return heads
    found = keys.counts("attention.head_count_kv", blocks, least=0)
    for layer, (queries, kept) in enumerate(zip(heads, found, strict=True)):
        if kept and queries % kept:
            raise keys.fault(
                "attention.head_count_kv", f"{kept} does not divide the {queries} query heads of layer {layer}"
            )
    return found


def _experts(keys: Keys) -> ExpertShape | None:
    count = keys.count("expert_count", 0, least=0)
    if not count:
        return None
    (dense,) = keys.counts("feed_forward_length", 1, 0, least=0)
    width = keys.count("expert_feed_forward_length", dense or None)
    shared = keys.count("expert_shared_feed_forward_length", 0, least=0)
    shared = shared or width * keys.count("expert_shared_count", 0, least=0)
    return ExpertShape(count, keys.count("expert_used_count", most=count), width, shared)


def _scaling(keys: Keys) -> RopeScaling:
    kind = keys.text("rope.scaling.type", "none")
    if kind == "none":
        return RopeScaling()
    if kind not in ("linear", "yarn"):
        raise keys.fault("rope.scaling.type", f"{kind[:40]!r} is not known; known are none, linear and yarn")
    factor = keys.real("rope.scaling.factor", 1.0, most=1e6)
    original = keys.count("rope.scaling.original_context_length", 0, least=0, most=limits.CONTEXT_TOKENS)
    if kind == "linear":
        return RopeScaling("linear", factor, original or None)
    if not original:
        original = keys.count("context_length", most=limits.CONTEXT_TOKENS)
    return RopeScaling(
        "yarn",
        factor,
        original,
        attn_factor=keys.real("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.real("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.real("rope.scaling.yarn_beta_slow", 1.0),
        log_multiplier=keys.real("rope.scaling.yarn_log_multiplier", 0.0, least=-1.0),
    )
