"""Random blocks of the types that `gguf` reads and does not write: codes at random, scales that make sense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Scales:
    """Where a block has its f16 scale, and its scale of minima: `ratio` times the first makes the mean 0."""

    scale_at: int
    minimum_at: int | None = None
    ratio: float = 0.0


RANDOM_BLOCKS: dict[str, Scales] = {
    "Q2_K": Scales(80, 82, 1.5),
    "Q3_K": Scales(108),
    "Q4_K": Scales(0, 2, 7.5),
    "Q5_K": Scales(0, 2, 15.5),
    "Q6_K": Scales(208),
    "IQ4_NL": Scales(0),
}


def random_blocks(kind: str, dims: tuple[int, int], scale: float, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return the rows of a matrix whose elements have a deviation of about `scale`."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    count = dims[0] * dims[1] // block
    raw = random.integers(0, 256, (count, size), dtype=np.uint8)
    unscaled = _with_scales(raw, RANDOM_BLOCKS[kind], np.ones(count))
    deviation = float(np.std(gguf.quants.dequantize(unscaled, gguf.GGMLQuantizationType[kind])))
    spread = scale / deviation * random.uniform(0.7, 1.3, count)
    return _with_scales(raw, RANDOM_BLOCKS[kind], spread).reshape(dims[0], -1)


def _with_scales(raw: NDArray[np.uint8], scales: Scales, values: NDArray[Any]) -> NDArray[np.uint8]:
    blocks = raw.copy()
    blocks[:, scales.scale_at : scales.scale_at + 2] = _half_bytes(values)
    if scales.minimum_at is not None:
        blocks[:, scales.minimum_at : scales.minimum_at + 2] = _half_bytes(values * scales.ratio)
    return blocks


def _half_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.astype(np.float16).view(np.uint8).reshape(-1, 2)
