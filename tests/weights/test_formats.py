"""Every block format against gguf's own dequantiser: equal, not near.

A scale is at most 11 + 6 bits (f16 times a 6-bit factor), a code at most 8 and where the scale is long 6: every product
is exact in f32, and a minimum is added with one rounding. So gguf's f32 is the exact value rounded once, which is what
f64 gives: 11 + 6 + 6 bits and a minimum from 2^-24 to 2^22 span less than 53.
"""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from decodepool_kernels.scales import Factored, products_of
from decodepool_sizing.layouts import QUANT_LAYOUTS
from decodepool_sizing.support import RUN_WEIGHT_TYPES
from decodepool_sizing.tensor_types import TensorType
from decodepool_worker.weights.formats import FORMATS
from numpy.typing import NDArray

from tests.weights.blocks import MXFP4_NAN, MXFP4_OVERFLOWS, SCALES_AT, blocks_of


def values(name: str, blocks: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return scale * (code - zero) + minimum in f64, `[blocks, elements]`."""
    kind = FORMATS[name]
    decoded = kind.decode(blocks)
    scales = products_of(decoded.scales).astype(np.float64)
    width = decoded.codes.shape[1] // scales.shape[1]
    minima = 0.0 if decoded.minima is None else np.repeat(products_of(decoded.minima).astype(np.float64), width, axis=1)
    return np.repeat(scales, width, axis=1) * (decoded.codes.astype(np.float64) - kind.zero) + minima


def reference(name: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    found = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    return np.asarray(found, np.float32).reshape(len(blocks), -1)


def test_every_type_that_the_planner_admits_has_a_decoder_and_a_layout() -> None:
    quantised = {kind.name for kind in RUN_WEIGHT_TYPES} - {"F32", "F16", "BF16"}
    assert quantised == set(FORMATS) == set(QUANT_LAYOUTS) == set(SCALES_AT)


@pytest.mark.parametrize("name", FORMATS)
def test_random_blocks_are_what_gguf_makes_of_them(name: str) -> None:
    blocks = blocks_of(name, 2000)
    assert np.array_equal(values(name, blocks).astype(np.float32), reference(name, blocks))


@pytest.mark.parametrize("name", FORMATS)
def test_every_byte_of_a_block_counts_as_in_gguf(name: str) -> None:
    """256 blocks in which every place but the f16 takes every value."""
    block_bytes = TensorType[name].block_bytes
    blocks = (np.arange(256)[:, None] + 7 * np.arange(block_bytes)[None, :]).astype(np.uint8)
    for start in SCALES_AT[name]:
        blocks[:, start : start + 2] = np.array([1.0 + start / 64], np.float16).view(np.uint8)
    if name == "MXFP4":
        blocks = blocks[blocks[:, 0] < MXFP4_OVERFLOWS]
    assert np.array_equal(values(name, blocks).astype(np.float32), reference(name, blocks))


@pytest.mark.parametrize("name", FORMATS)
def test_codes_and_scales_fit_the_layout_in_which_they_are_kept(name: str) -> None:
    layout, decoded = QUANT_LAYOUTS[name], FORMATS[name].decode(blocks_of(name, 500))
    assert decoded.codes.max() < 1 << layout.code_bits
    assert decoded.codes.shape[1] // products_of(decoded.scales).shape[1] == layout.sub_block
    assert isinstance(decoded.scales, Factored) == layout.is_factored
    assert (decoded.minima is not None) == layout.has_minimum
    kept = np.float16 if layout.scale_bytes == 2 else np.float32
    for plane in (decoded.scales, decoded.minima):
        wide = None if plane is None else products_of(plane)
        assert wide is None or np.array_equal(wide.astype(kept).astype(np.float64), wide.astype(np.float64))


def test_the_exponent_that_stands_for_nan_is_nan() -> None:
    """E8M0 has one NaN (OCP MX 1.0, 5.4.1) and no infinity."""
    blocks = blocks_of("MXFP4", 3)
    blocks[1, 0] = MXFP4_NAN
    scales = products_of(FORMATS["MXFP4"].decode(blocks).scales)
    assert np.isnan(scales).ravel().tolist() == [False, True, False]
