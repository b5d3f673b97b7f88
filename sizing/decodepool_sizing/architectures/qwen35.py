"""qwen35, qwen35moe, qwen3next: three layers of Gated DeltaNet, whose state has a fixed size, to one of attention."""

from __future__ import annotations

from decodepool_sizing import limits
from decodepool_sizing.architectures.common import F32_BYTES, Common, Own, attention_layers, without_attention

DEFAULT_INTERVAL = 4


def qwen35(common: Common) -> Own:
    """Return attention layers where `attention.recurrent_layers`, or else the interval, says so, recurrent ones
    elsewhere.
    """
    state_bytes = delta_state_bytes(common)
    layers = attention_layers(common, [None] * common.block_count)
    recurrent = _recurrent(common)
    mixed = tuple(
        without_attention(layer, state_bytes) if flag else layer for layer, flag in zip(layers, recurrent, strict=True)
    )
    return Own(mixed, common.attention_scale, common.rope)


def delta_state_bytes(common: Common) -> int:
    """Return the bytes of one layer's state: the last inputs of its convolution, and a matrix for each value head, in
    f32.
    """
    keys = common.keys
    size = keys.count("ssm.state_size", most=1 << 12)
    key_heads, value_heads = keys.count("ssm.group_count", most=1 << 12), keys.count("ssm.time_step_rank", most=1 << 12)
    channels = 2 * size * key_heads + size * value_heads
    inner = keys.count("ssm.inner_size", size * value_heads)
    if inner != size * value_heads:
        raise keys.fault("ssm.inner_size", f"{inner} is not {value_heads} value heads of {size}")
    taps = keys.count("ssm.conv_kernel", most=1 << 8) - 1
    return F32_BYTES * (taps * channels + value_heads * size * size)


def _recurrent(common: Common) -> tuple[bool, ...]:
    given = common.keys.flags("attention.recurrent_layers", common.block_count)
    if given is not None:
        return given
    interval = common.keys.count("full_attention_interval", DEFAULT_INTERVAL, most=limits.BLOCKS)
    return tuple((i + 1) % interval != 0 for i in range(common.block_count))
