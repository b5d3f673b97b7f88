"""A model in which one token overflows."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.tiny.models import VOCABULARY

HUGE_TOKEN = 0


def with_a_token_that_overflows(path: Path) -> bytes:
    """Token 0 alone has something in dimension 0, which the first norm makes infinite. Every weight is finite."""
    data = bytearray(path.read_bytes())
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}

    def put(name: str, element: int, value: float) -> None:
        offset = int(tensors[name].data_offset) + 4 * element
        data[offset : offset + 4] = np.float32(value).tobytes()

    for token in range(VOCABULARY):
        put("token_embd.weight", token * 64, 8.0 if token == HUGE_TOKEN else 0.0)
    put("blk.0.attn_norm.weight", 0, 3e38)
    return bytes(data)
