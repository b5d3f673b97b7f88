"""What a GPU's tensor cores are held to as it starts: the products of docs/arithmetic.md, on numbers chosen to be hard.

A small matrix of each kind that a model has, of two halves. Small integers times integers of 12 bits have every
partial sum exact in f32, so the answer is one, to the bit, whatever the order: a tensor core that drops bits fails.
Random weights times rows of many magnitudes must be near binary64; and every row must have the same bits among 16 and
among 64, some alone too, which other programs multiply (`mma.sync` for few rows, `wgmma` for many where there is it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.errors import GpuFault
from decodepool_kernels.cuda.packing import MatrixKind, PackedMatrix, pack_float, pack_quantised
from decodepool_kernels.cuda.trial import ProductTrial
from decodepool_kernels.scales import Factored, Scales, products_of
from decodepool_sizing.layouts import QuantLayout
from numpy.typing import NDArray

INPUTS, HALF, ROWS = 1056, 64, 64
"""33 blocks: a short last group, slices of one group and of two. Outputs, and rows, of which half are integers."""
MOST_CODE, MOST_INTEGER = 3, 4095
"""Of the integers: their products' sums stay below 2^24."""
MOST_FACTOR, GROUP_CODES = 63, 32
"""Of k-quants: the largest factor, and how many codes there are where both make one f16 and a group is one chain."""
BOUND = 2e-6
"""Of a row's root mean square, against binary64: 1.1e-6 was read, of chains of 16 steps on the hardest row."""
ALONE = (0, 31, 32, 47, 63)
"""Rows that are multiplied one by one."""
WIDTHS = (16, 64)
"""Steps that every row takes part in."""


class Products(Protocol):
    """Rows times a matrix."""

    def rows(self, which: Sequence[int]) -> NDArray[np.float32]:
        """Return the products of some rows, as one step makes them."""


@dataclass(frozen=True)
class Weights:
    """A packed matrix, and what it stands for."""

    packed: PackedMatrix
    values: NDArray[np.float64]


def require_arithmetic(gpu: Gpu, kinds: Iterable[MatrixKind]) -> None:
    """Hold a GPU to the arithmetic of its products; GpuFault with its name and the kind of weights that failed."""
    for kind in kinds:
        with gpu.borrowed():
            weights, x = hard_weights(kind), hard_rows()
            fault = found_fault(ProductTrial(gpu, weights.packed, x), weights.values, x)
        if fault:
            raise GpuFault(f"{gpu.name}: a product of {kind.code_bits}-bit weights {fault}, so it cannot serve exactly")


def found_fault(trial: Products, values: NDArray[np.float64], x: NDArray[np.float32]) -> str | None:
    """Return what is wrong with the products of a trial; None where nothing is."""
    found = np.concatenate([trial.rows(range(first, first + WIDTHS[0])) for first in range(0, ROWS, WIDTHS[0])])
    wanted = x.astype(np.float64) @ values.T
    if (found[: ROWS // 2, :HALF] != wanted[: ROWS // 2, :HALF]).any():
        return "is not exact where it should be"
    apart = np.sqrt(((found - wanted) ** 2).sum(1) / np.maximum((wanted**2).sum(1), np.finfo(np.float32).tiny))
    if not (apart < BOUND).all():
        return f"is {apart.max():.1e} from binary64"
    if any(trial.rows([row]).tobytes() != found[row].tobytes() for row in ALONE):
        return "has other bits alone than among 16 rows"
    if trial.rows(range(ROWS)).tobytes() != found.tobytes():
        return f"has other bits among {ROWS} rows than among 16"
    return None


def hard_rows() -> NDArray[np.float32]:
    """Return `[ROWS, INPUTS]`: integers, then outliers, zeros between, and magnitudes from the least to the largest."""
    random = np.random.default_rng(1)
    rows = random.integers(-MOST_INTEGER, MOST_INTEGER + 1, (ROWS, INPUTS)).astype(np.float64)
    hard = random.standard_normal((ROWS // 2, INPUTS))
    hard[0::4, 5::509] *= 1e4
    hard[1::4] *= np.arange(INPUTS) // 128 % 3 > 0
    hard[2::4] *= np.exp2(random.integers(-12, 12, INPUTS))
    hard *= np.exp2(np.linspace(-90, 90, ROWS // 2).round())[:, None]
    rows[ROWS // 2 :] = hard
    return rows.astype(np.float32)


def hard_weights(kind: MatrixKind) -> Weights:
    """Return HALF outputs of small integers and HALF of random weights, kept as `kind`."""
    random = np.random.default_rng(2)
    if kind.code_bits == 16:
        return _floats(kind, random)
    parts = INPUTS // kind.sub_block
    scale_bytes = 4 if kind.is_factored else kind.scale_bytes
    layout = QuantLayout(kind.code_bits, kind.sub_block, kind.has_minimum, scale_bytes, kind.is_factored)
    zero = 0 if kind.has_minimum else MOST_CODE
    most = min(GROUP_CODES, 1 << kind.code_bits) if kind.has_group_chains else 1 << kind.code_bits
    codes = random.integers(0, most, (2 * HALF, INPUTS))
    codes[:HALF] = random.integers(0, 2 * MOST_CODE + 1, (HALF, INPUTS))
    signs = random.choice([-1, 1], (HALF, parts))
    scales = _hard_scales(kind, random, signs, 0.02)
    minima = _hard_scales(kind, random, -MOST_CODE * signs, 0.1) if kind.has_minimum else None
    packed = pack_quantised(layout, codes.astype(np.uint8), scales, minima, zero)
    values = _spread(scales, kind) * (codes - zero)
    return Weights(packed, values if minima is None else values + _spread(minima, kind))


def _hard_scales(kind: MatrixKind, random: np.random.Generator, integers: NDArray[Any], spread: float) -> Scales:
    """Return scales or minima: integers of HALF outputs, and random ones of the others."""
    if kind.is_factored:
        others = random.integers(-MOST_FACTOR, MOST_FACTOR + 1, integers.shape)
        factors = np.concatenate([integers, others]).astype(np.int8)
        units = np.concatenate([np.ones(HALF), random.standard_normal(HALF) * spread / 32]).astype(np.float16)
        return Factored(units[:, None], factors)
    drawn = random.standard_normal(integers.shape) * spread
    return np.concatenate([integers, drawn]).astype(np.float16 if kind.scale_bytes == 2 else np.float32)


def _spread(scales: Scales, kind: MatrixKind) -> NDArray[np.float64]:
    return np.repeat(products_of(scales).astype(np.float64), kind.sub_block, 1)


def _floats(kind: MatrixKind, random: np.random.Generator) -> Weights:
    values = random.standard_normal((2 * HALF, INPUTS)).astype(np.float32)
    values[:HALF] = random.integers(-MOST_CODE, MOST_CODE + 1, (HALF, INPUTS))
    if kind.is_bfloat:
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return Weights(pack_float("BF16", bits), (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64))
    halves = values.astype(np.float16)
    return Weights(pack_float("F16", halves.view(np.uint16)), halves.astype(np.float64))
