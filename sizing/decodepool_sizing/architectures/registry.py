"""The architectures whose shape is known: one row each."""

from __future__ import annotations

from decodepool_sizing.architectures.common import Rules
from decodepool_sizing.architectures.deepseek2 import deepseek2
from decodepool_sizing.architectures.deepseek4 import deepseek4
from decodepool_sizing.architectures.gemma3 import gemma3
from decodepool_sizing.architectures.gemma4 import gemma4
from decodepool_sizing.architectures.gpt_oss import gpt_oss
from decodepool_sizing.architectures.llama import full_attention
from decodepool_sizing.architectures.minimax_m3 import minimax_m3
from decodepool_sizing.architectures.qwen35 import qwen35
from decodepool_sizing.architectures.step35 import step35

ARCHITECTURES: dict[str, Rules] = {
    "deepseek2": deepseek2,
    "deepseek4": deepseek4,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "gpt-oss": gpt_oss,
    "llama": full_attention,
    "minimax-m3": minimax_m3,
    "qwen2": full_attention,
    "qwen3": full_attention,
    "qwen35": qwen35,
    "qwen35moe": qwen35,
    "qwen3moe": full_attention,
    "qwen3next": qwen35,
    "step35": step35,
}
