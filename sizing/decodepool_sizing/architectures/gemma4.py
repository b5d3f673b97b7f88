"""gemma4, dense, with per-layer embeddings, or with experts: two head sizes, and last layers that share the keys of
earlier ones.
"""

from __future__ import annotations

from dataclasses import replace

from decodepool_sizing.architectures.common import (
    Common,
    Own,
    attention_layers,
    keys_and_values,
    read_window_rope,
    windows_by_pattern,
)
from decodepool_sizing.layers import LayerShape

ATTENTION_SCALE = 1.0


def gemma4(common: Common) -> Own:
    """Return gemma4's layers: heads of their own size where there is a window, no rows where keys are shared."""
    keys = common.keys
    layers = attention_layers(common, windows_by_pattern(common, None))
    shared = keys.count("attention.shared_kv_layers", 0, least=0)
    if shared >= common.block_count:
        raise keys.fault(
            "attention.shared_kv_layers", f"{shared} of {common.block_count} layers leaves none to share from"
        )
    key_length = keys.count("attention.key_length_swa", common.key_length)
    value_length = keys.count("attention.value_length_swa", common.value_length)
    sized = [_with_heads(layer, key_length, value_length) if layer.window else layer for layer in layers]
    owners = common.block_count - shared
    return Own(
        layers=(*sized[:owners], *(replace(layer, cache=()) for layer in sized[owners:])),
        attention_scale=ATTENTION_SCALE,
        rope=common.rope,
        window_rope=read_window_rope(keys, keys.count("rope.dimension_count_swa", key_length)),
        per_layer_embedding_length=keys.count("embedding_length_per_layer_input", 0, least=0),
    )


def _with_heads(layer: LayerShape, key_length: int, value_length: int) -> LayerShape:
    cache = keys_and_values(layer.kv_head_count, key_length, value_length, layer.window)
    return replace(layer, key_length=key_length, value_length=value_length, cache=cache)
