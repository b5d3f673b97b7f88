"""gemma3: five layers with a window to one without."""

from __future__ import annotations

from decodepool_sizing.architectures.common import Common, Own, attention_layers, read_window_rope, windows_by_pattern

DEFAULT_PERIOD = 6
BLOCKS_OF_27B = 62


def gemma3(common: Common) -> Own:
    """Return gemma3's layers. The 27B alone scales by the embedding's share of a head instead of the head's length."""
    scale = common.attention_scale
    if common.block_count == BLOCKS_OF_27B:
        scale = float((common.embedding_length // common.head_counts[0]) ** -0.5)
    layers = attention_layers(common, windows_by_pattern(common, DEFAULT_PERIOD))
    return Own(layers, scale, common.rope, read_window_rope(common.keys, common.rope.dimension_count))
