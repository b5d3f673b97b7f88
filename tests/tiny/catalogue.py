"""The tiny models that tests enumerate, and engines on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from decodepool_sizing.kv import KVType
from decodepool_worker.engine.open import MeasuredEngine, Wanted, open_model
from decodepool_worker.engine.rows import Engine, Span
from numpy.typing import NDArray

from tests.tiny.blocks import RANDOM_BLOCKS
from tests.tiny.models import Tiny

BLOCK_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", *RANDOM_BLOCKS)
FLOAT_TYPES = ("F16", "BF16")

VARIANTS = (
    Tiny(),
    Tiny(rope="factors", tied=True),
    Tiny(rope="linear"),
    Tiny(rope="yarn"),
    Tiny(qkv_bias=True, other_bias=True),
    Tiny("qwen2", qkv_bias=True),
    Tiny("qwen2", qkv_bias=True, tied=True, rope="yarn"),
    Tiny("qwen3", head_norms=True),
    Tiny("qwen3", head_norms=True, rope="yarn", head_length=32),
)
"""F32 weights, every variant of every architecture."""

WEIGHT_TYPES = tuple(Tiny("qwen3", kind, head_norms=True, head_length=64) for kind in (*FLOAT_TYPES, *BLOCK_TYPES))
"""Every other type of weight, in a model as wide as one super-block."""


@contextmanager
def open_tiny(
    path: Path, *, context: int = 192, sessions: int = 64, kv_type: KVType = KVType.F32, threads: int = 2
) -> Iterator[MeasuredEngine]:
    """Open a model's engine for the time of a `with`."""
    engine = open_model(path, Wanted(context, sessions, kv_type, threads=threads)).engine
    try:
        yield engine
    finally:
        engine.close()


def all_logits(engine: Engine, tokens: list[int]) -> NDArray[np.float32]:
    """Return the logits after each token, `[tokens, vocabulary]`: 32 rows a step."""
    rows, pages = [], list(range(engine.page_count))
    for first in range(0, len(tokens), 32):
        step = tokens[first : first + 32]
        engine.step([Span(pages, first + slot, [token], slot) for slot, token in enumerate(step)])
        rows += [engine.logits(slot).copy() for slot in range(len(step))]
    return np.stack(rows)
