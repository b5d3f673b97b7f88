"""Random blocks of every quantised type, as a file holds them."""

from __future__ import annotations

import numpy as np
from decodepool_sizing.tensor_types import TensorType
from numpy.typing import NDArray

SCALES_AT: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "MXFP4": (),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where a block's f16 begin."""
MXFP4_NAN, MXFP4_OVERFLOWS = 255, 253
"""Exponents: the one that is NaN, and the first whose largest codes leave f32."""


def blocks_of(name: str, count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return blocks `[count, block_bytes]` of random bytes, with finite f16, denormals and either sign among them."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (count, TensorType[name].block_bytes)).astype(np.uint8)
    for start in SCALES_AT[name]:
        blocks[:, start + 1] = blocks[:, start + 1] & 0x80 | random.integers(0, 0x7C, count).astype(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] %= MXFP4_OVERFLOWS
    return blocks
