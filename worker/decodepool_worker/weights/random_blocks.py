"""Random weights as the bytes of a file: codes at random, scales that make sense, so that a model of them runs as a
trained one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from decodepool_kernels.scales import products_of
from decodepool_sizing.tensor_types import TensorType
from numpy.typing import NDArray

from decodepool_worker.weights.formats import FORMATS, Codes


@dataclass(frozen=True)
class ScalePlaces:
    """Where a block has its f16 scale and its f16 minimum; `ratio` times the scale as minimum makes the mean 0."""

    scale_at: int
    minimum_at: int | None = None
    ratio: float = 0.0


PLACES: dict[str, ScalePlaces] = {
    "Q4_0": ScalePlaces(0),
    "Q4_1": ScalePlaces(0, 2, -7.5),
    "Q5_0": ScalePlaces(0),
    "Q5_1": ScalePlaces(0, 2, -15.5),
    "Q8_0": ScalePlaces(0),
    "IQ4_NL": ScalePlaces(0),
    "Q2_K": ScalePlaces(80, 82, 1.5),
    "Q3_K": ScalePlaces(108),
    "Q4_K": ScalePlaces(0, 2, 7.5),
    "Q5_K": ScalePlaces(0, 2, 15.5),
    "Q6_K": ScalePlaces(208),
}
MXFP4_DEVIATION = 2.93
"""Of a value before its power of two."""


def random_bytes(kind: TensorType, inputs: int, outputs: int, random: np.random.Generator) -> bytes:
    """Return a matrix `[outputs, inputs]` whose elements deviate by about 1 / sqrt(inputs): a product keeps the spread
    of what it is given.
    """
    deviation, count = inputs**-0.5, inputs * outputs
    if kind.block_elements == 1:
        return _floats(kind, random.standard_normal(count, np.float32) * np.float32(deviation))
    blocks = random.integers(0, 256, (count // kind.block_elements, kind.block_bytes), np.uint8)
    if kind is TensorType.MXFP4:
        blocks[:, 0] = 127 + round(np.log2(deviation / MXFP4_DEVIATION))
        return blocks.tobytes()
    places = PLACES[kind.name]
    _set(blocks, places, 1.0)
    unscaled = _values(FORMATS[kind.name].decode(blocks[:64]), FORMATS[kind.name].zero)
    _set(blocks, places, deviation / float(unscaled.std()))
    return blocks.tobytes()


def _floats(kind: TensorType, values: NDArray[np.float32]) -> bytes:
    if kind is TensorType.BF16:
        return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).tobytes()
    return values.astype(np.float16 if kind is TensorType.F16 else np.float32).tobytes()


def _set(blocks: NDArray[np.uint8], places: ScalePlaces, scale: float) -> None:
    blocks[:, places.scale_at : places.scale_at + 2] = _half_bytes(scale)
    if places.minimum_at is not None:
        blocks[:, places.minimum_at : places.minimum_at + 2] = _half_bytes(scale * places.ratio)


def _half_bytes(value: float) -> NDArray[np.uint8]:
    return np.array([value], np.float16).view(np.uint8)


def _values(decoded: Codes, zero: int) -> NDArray[Any]:
    scales = products_of(decoded.scales)
    codes = decoded.codes.astype(np.float64).reshape(*scales.shape, -1) - zero
    values: NDArray[Any] = codes * scales[..., None]
    return values if decoded.minima is None else values + products_of(decoded.minima)[..., None]
