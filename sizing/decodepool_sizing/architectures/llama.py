"""llama (Llama 1 to 3, Mistral, SmolLM2, Mixtral), qwen2, qwen3, qwen3moe: full attention in every layer."""

from __future__ import annotations

from decodepool_sizing.architectures.common import Common, Own, attention_layers


def full_attention(common: Common) -> Own:
    """Return layers that all keep every key and value."""
    layers = attention_layers(common, [None] * common.block_count)
    return Own(layers, common.attention_scale, common.rope)
