"""deepseek2 (V2, V3, R1, Kimi-K2): latent attention. A token's row is its latent and one rotated key, for keys and
values both.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

from decodepool_sizing.architectures.common import Common, Own, attention_layers
from decodepool_sizing.layers import CacheRows, RopeScaling


def deepseek2(common: Common) -> Own:
    """Return latent layers. `key_length` and `value_length` in the file are those of the cached row, the latent and
    its rope.
    """
    keys = common.keys
    latent = keys.count("attention.kv_lora_rank")
    row = CacheRows("latents", 1, latent + common.rope.dimension_count)
    head = keys.count("attention.key_length_mla", common.key_length)
    value = keys.count("attention.value_length_mla", common.value_length)
    layers = tuple(
        replace(layer, kv_head_count=1, key_length=head, value_length=value, cache=(row,))
        for layer in attention_layers(common, [None] * common.block_count)
    )
    return Own(layers, float(head**-0.5) * _yarn_gain(common.rope.scaling), common.rope)


def _yarn_gain(scaling: RopeScaling) -> float:
    if scaling.kind != "yarn" or scaling.factor <= 1:
        return 1.0
    return (1 + scaling.log_multiplier * log(scaling.factor)) ** 2
