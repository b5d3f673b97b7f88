"""minimax-m3: attention over blocks that an indexer picks; sparse layers keep the indexer's keys beside their own."""

from __future__ import annotations

from dataclasses import replace

from decodepool_sizing import limits
from decodepool_sizing.architectures.common import Common, Own, attention_layers
from decodepool_sizing.layers import CacheRows


def minimax_m3(common: Common) -> Own:
    """Return the dense layers that lead, then sparse ones with one indexer key a token."""
    dense = common.keys.count("leading_dense_block_count", 0, least=0, most=limits.BLOCKS)
    indexer = CacheRows("indexer keys", 1, common.keys.count("attention.indexer.key_length"))
    layers = attention_layers(common, [None] * common.block_count)
    sparse = tuple(replace(layer, cache=(*layer.cache, indexer)) for layer in layers[dense:])
    return Own((*layers[:dense], *sparse), common.attention_scale, common.rope)
