"""Random weights are sound files' bytes: finite, centred, and of the spread that keeps a product's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decodepool_sizing.layouts import FLOAT_BYTES
from decodepool_sizing.support import RUN_WEIGHT_TYPES
from decodepool_sizing.tensor_types import TensorType
from decodepool_worker.weights.random_blocks import random_bytes
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

INPUTS, OUTPUTS = 512, 64
KINDS = sorted(RUN_WEIGHT_TYPES)


def values(kind: TensorType, raw: bytes) -> NDArray[Any]:
    if kind.name in FLOAT_BYTES and kind is not TensorType.BF16:
        return np.frombuffer(raw, np.float32 if kind is TensorType.F32 else np.float16).astype(np.float64)
    shape = (OUTPUTS, INPUTS // kind.block_elements * kind.block_bytes)
    read: NDArray[Any] = quants.dequantize(np.frombuffer(raw, np.uint8).reshape(shape), GGMLQuantizationType(kind))
    return read.astype(np.float64)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_weights_of_every_type_are_centred_and_spread_as_a_product_wants(kind: TensorType) -> None:
    found = values(kind, random_bytes(kind, INPUTS, OUTPUTS, np.random.default_rng(5)))
    assert found.size == INPUTS * OUTPUTS
    assert np.isfinite(found).all()
    assert found.std() == pytest.approx(INPUTS**-0.5, rel=0.5 if kind is TensorType.MXFP4 else 0.1)
    assert abs(found.mean()) < 0.2 * found.std()


def test_the_same_seed_makes_the_same_weights() -> None:
    first, again = (random_bytes(TensorType.Q6_K, INPUTS, OUTPUTS, np.random.default_rng(3)) for _ in range(2))
    assert first == again
