"""deepseek4 (V4 Flash): a window of plain rows, and beyond it one compressed row for each 4 or 128 tokens.

A layer with ratio r keeps, in f32, the inputs of the entry that is being gathered. With r = 4 entries overlap: twice
the slots, each twice as wide, and the same again at the indexer's width, which also keeps its own compressed rows.
"""

from __future__ import annotations

from dataclasses import replace

from decodepool_sizing import limits
from decodepool_sizing.architectures.common import F32_BYTES, Common, Own, attention_layers
from decodepool_sizing.layers import CacheRows, LayerShape

OVERLAPPING_RATIO = 4


def deepseek4(common: Common) -> Own:
    """Return a layer for each entry of `attention.compress_ratios`; keys and values are one vector."""
    keys = common.keys
    window = keys.count("attention.sliding_window", most=limits.CONTEXT_TOKENS)
    ratios = keys.counts("attention.compress_ratios", common.block_count, least=0, most=1 << 16)
    indexer_length = keys.count("attention.indexer.key_length")
    plain = attention_layers(common, [window] * common.block_count)
    layers = tuple(_compressed(layer, ratio, indexer_length) for layer, ratio in zip(plain, ratios, strict=True))
    return Own(layers, common.attention_scale, common.rope, common.rope)


def _compressed(layer: LayerShape, ratio: int, indexer_length: int) -> LayerShape:
    length, heads = layer.key_length, layer.kv_head_count
    rows = [CacheRows("keys that are values", heads, length, window=layer.window)]
    state_bytes = 0
    if ratio:
        rows.append(CacheRows("compressed entries", heads, length, ratio))
        state_bytes += gathering_bytes(ratio, heads * length)
    if ratio == OVERLAPPING_RATIO:
        rows.append(CacheRows("indexer entries", 1, indexer_length, ratio))
        state_bytes += gathering_bytes(ratio, indexer_length)
    return replace(layer, cache=tuple(rows), state_bytes=state_bytes)


def gathering_bytes(ratio: int, length: int) -> int:
    """Return the bytes of a compressor's slots: a value and a score for each channel of each token being gathered."""
    overlap = 2 if ratio == OVERLAPPING_RATIO else 1
    return F32_BYTES * 2 * (overlap * ratio) * (overlap * length)
