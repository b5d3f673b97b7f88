"""Random quantised matrices of every type, and the planes they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from decodepool_kernels.cpu.packing import QuantMatrix, pack_quantised
from decodepool_kernels.scales import Factored, Scales, products_of
from decodepool_sizing.layouts import QUANT_LAYOUTS, QuantLayout
from decodepool_worker.weights.formats import FORMATS
from numpy.typing import NDArray

TYPES = tuple(QUANT_LAYOUTS)
CODE_COUNTS = {"Q5_0": 32, "Q5_1": 32, "Q5_K": 32, "Q6_K": 64, "MXFP4": 25, "Q2_K": 4, "Q3_K": 8}
"""Codes that a type has, where it is not all that its bits can hold."""
FACTORS = {"Q2_K": (0, 16), "Q3_K": (-32, 32), "Q4_K": (0, 64), "Q5_K": (0, 64), "Q6_K": (-128, 128)}
"""The factors that a k-quant's bits can hold, from the first to before the second."""


@dataclass(frozen=True)
class Planes:
    """A matrix as integers and scales, `[outputs, inputs]` and `[outputs, sub-blocks]`."""

    codes: NDArray[np.uint8]
    scales: Scales
    minima: Scales | None
    zero: int
    layout: QuantLayout

    @property
    def packed(self) -> QuantMatrix:
        return pack_quantised(self.layout, self.codes, self.scales, self.minima, self.zero)

    @property
    def values(self) -> NDArray[np.float64]:
        """The weights, exact."""
        shifted = self.codes.astype(np.float64) - self.zero
        spread = np.repeat(self.wide_scales.astype(np.float64), self.layout.sub_block, axis=1)
        minima = self.wide_minima
        least = 0.0 if minima is None else np.repeat(minima.astype(np.float64), self.layout.sub_block, axis=1)
        return spread * shifted + least

    @property
    def wide_scales(self) -> NDArray[np.float32]:
        return products_of(self.scales).astype(np.float32)

    @property
    def wide_minima(self) -> NDArray[np.float32] | None:
        return None if self.minima is None else products_of(self.minima).astype(np.float32)


def planes(name: str, outputs: int, inputs: int, seed: int = 0) -> Planes:
    """Return random planes of one type, with scales of either sign, some of them zero."""
    layout, random = QUANT_LAYOUTS[name], np.random.default_rng(seed)
    count = CODE_COUNTS.get(name, 1 << layout.code_bits)
    codes = random.integers(0, count, (outputs, inputs)).astype(np.uint8)
    shape, spreads = (outputs, inputs // layout.sub_block), (0.02, 0.1)
    scales, minima = (
        _factored(random, layout, shape, spread, FACTORS[name])
        if layout.is_factored
        else _plain(random, layout, shape, spread)
        for spread in spreads
    )
    return Planes(codes, scales, minima if layout.has_minimum else None, FORMATS[name].zero, layout)


def _plain(random: np.random.Generator, layout: QuantLayout, shape: tuple[int, int], spread: float) -> NDArray[Any]:
    kind = np.float16 if layout.scale_bytes == 2 else np.float32
    scales = (random.standard_normal(shape) * spread).astype(kind)
    scales[random.random(shape) < 0.05] = 0
    return scales


def _factored(
    random: np.random.Generator, layout: QuantLayout, shape: tuple[int, int], spread: float, of_type: tuple[int, int]
) -> Factored:
    """Every factor that a type has; whole rows share a unit where they are not of whole blocks of 256."""
    outputs, count = shape
    blocks, rest = divmod(count * layout.sub_block, 256)
    units = (random.standard_normal((outputs, 1 if rest else blocks)) * (spread / 64)).astype(np.float16)
    factors = random.integers(*of_type, shape).astype(np.int8)
    factors[random.random(shape) < 0.05] = 0
    return Factored(units, factors)
