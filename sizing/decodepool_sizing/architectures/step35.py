"""step35 (Step-3.5-Flash): head counts by layer, windows by a list of booleans."""

from __future__ import annotations

from dataclasses import replace

from decodepool_sizing.architectures.common import Common, Own, attention_layers, read_window_rope, windows_by_pattern


def step35(common: Common) -> Own:
    """Return step35's layers. Full layers turn half of the dimensions, windowed ones all of them."""
    turned = common.rope.dimension_count
    if turned % 4:
        raise common.keys.fault("rope.dimension_count", f"half of {turned} is odd; dimensions turn in pairs")
    layers = attention_layers(common, windows_by_pattern(common, None))
    rope = replace(common.rope, dimension_count=turned // 2)
    return Own(layers, common.attention_scale, rope, read_window_rope(common.keys, turned))
