"""qwen2 (Qwen2, Qwen2.5): llama's step with biases on q, k and v, and pairs (i, i + n/2)."""

from __future__ import annotations

from decodepool_worker.model.llama import build

__all__ = ["INTERLEAVED", "build"]

INTERLEAVED = False
