"""gpt-oss: a window in every even layer, sinks, experts throughout."""

from __future__ import annotations

from decodepool_sizing import limits
from decodepool_sizing.architectures.common import Common, Own, attention_layers


def gpt_oss(common: Common) -> Own:
    """Return gpt-oss's layers; both kinds share one rope."""
    window = common.keys.count("attention.sliding_window", most=limits.CONTEXT_TOKENS)
    layers = attention_layers(common, [None if i % 2 else window for i in range(common.block_count)])
    return Own(layers, float(common.rope.dimension_count**-0.5), common.rope, common.rope)
