"""Every instruction set's dot product gives the same integers, at the extremes too.

Bounds, for 32 products of a code of at most 255 with |q| <= 32512 = 127 * 256: sum code q <= 255 * 32512 * 32 =
265,297,920, and zero * sum q no more; their difference is sum (code - zero) q, where |code - zero| <= 255: no more
either; high bytes alone, shifted, 255 * 127 * 32 * 256: the same number. All under 2^31 = 2,147,483,648.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from decodepool_kernels.cpu.buffers import address
from decodepool_kernels.cpu.dot import DOTS
from decodepool_kernels.cpu.features import HOST_ISA
from decodepool_kernels.cpu.jit import compiled
from decodepool_kernels.cpu.matmul import ACTIVATION_BYTES, block_product
from decodepool_kernels.cpu.packing import pack_quantised
from decodepool_sizing.layouts import LAYOUT_KINDS, QuantLayout
from numpy.typing import NDArray

HERE = tuple(name for name in DOTS if name in {"generic", HOST_ISA} or (name == "avx2" and HOST_ISA == "vnni"))
"""The instruction sets that this machine can run; one that it lacks cannot be tried on it."""
ZEROS = {4: (0, 8), 8: (0, 16, 128, 255)}
ROWS = 5


@cache
def product(isa: str) -> Callable[..., None]:
    fold = block_product(isa)

    @compiled
    def run(kind: int, codes: int, scales: int, zero: int, activations: int, totals: int, rows: int) -> None:
        fold(kind, codes, scales, np.int32(zero), activations, totals, rows)

    return run


def activations(q: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Activation records of rows `[rows, 32]` with d = 1."""
    records = np.zeros((len(q), ACTIVATION_BYTES), np.uint8)
    high = (q + 128) >> 8
    records[:, :32] = high.astype(np.int8).view(np.uint8)
    records[:, 32:64] = (q - 256 * high).astype(np.int8).view(np.uint8)
    records[:, 64:68] = np.ones((len(q), 1), np.float32).view(np.uint8)
    halves = q.reshape(-1, 2, 16).sum(axis=2)
    records[:, 68:80] = (
        np.concatenate([halves, halves.sum(axis=1, keepdims=True)], axis=1).astype(np.int32).view(np.uint8)
    )
    return records


def integers(seed: int) -> NDArray[np.int64]:
    """Rows of q: both ends, both ends by turns, low bytes at their ends, and any."""
    random = np.random.default_rng(seed)
    turns = np.where(np.arange(32) % 2, 32512, -32512)
    low = 256 * random.integers(-126, 127, 32) + np.where(np.arange(32) % 2, 127, -128)
    return np.stack([np.full(32, 32512), np.full(32, -32512), turns, low, random.integers(-32512, 32513, 32)])


def codes_of(bits: int, fill: str) -> NDArray[np.uint8]:
    largest = (1 << bits) - 1
    if fill == "random":
        return np.random.default_rng(bits).integers(0, largest + 1, (16, 32)).astype(np.uint8)
    return np.full((16, 32), largest if fill == "largest" else 0, np.uint8)


def ones(layout: QuantLayout) -> NDArray[np.float32]:
    return np.ones((16, 32 // layout.sub_block), np.float32)


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize(
    "layout",
    LAYOUT_KINDS,
    ids=lambda x: f"{x.code_bits} bits by {x.sub_block}, {x.scale_bytes}{' min' * x.has_minimum}",
)
@pytest.mark.parametrize("fill", ["largest", "zero", "random"])
def test_sums_are_exact(isa: str, layout: QuantLayout, fill: str) -> None:
    codes, q = codes_of(layout.code_bits, fill), integers(3)
    minima = ones(layout) * 0 if layout.has_minimum else None
    for zero in ZEROS[layout.code_bits]:
        packed = pack_quantised(layout, codes, ones(layout), minima, zero)
        totals = np.zeros((ROWS, 16), np.float32)
        records = activations(q)
        product(isa)(
            packed.kind, address(packed.codes), address(packed.scales), zero, address(records), address(totals), ROWS
        )
        parts = (
            q.reshape(ROWS, -1, layout.sub_block),
            (codes.astype(np.int64) - zero).reshape(16, -1, layout.sub_block),
        )
        wanted = np.zeros((ROWS, 16), np.float32)
        for part in range(32 // layout.sub_block):
            exact = parts[0][:, part] @ parts[1][:, part].T
            assert np.abs(exact).max() < 2**31
            wanted = (wanted.astype(np.float64) + exact.astype(np.float32)).astype(np.float32)
        assert np.array_equal(totals, wanted)


def test_this_machine_tries_more_than_one_instruction_set() -> None:
    assert "generic" in HERE
    assert HOST_ISA in HERE
