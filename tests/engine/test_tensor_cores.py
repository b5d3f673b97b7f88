"""What a GPU is held to as it starts: each way to be wrong is told. No GPU needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.packing import F16_KIND
from decodepool_kernels.cuda.registry import KINDS
from decodepool_worker.engine.tensor_cores import HALF, INPUTS, MOST_INTEGER, ROWS, found_fault, hard_rows, hard_weights

Floats = NDArray[np.float32]
Wrong = Callable[[Floats, Sequence[int]], Floats]


class Multiplied:
    """Products in binary64, rounded once, and then made wrong."""

    def __init__(self, x: Floats, values: NDArray[np.float64], wrong: Wrong) -> None:
        self.products, self.wrong = (x.astype(np.float64) @ values.T).astype(np.float32), wrong

    def rows(self, which: Sequence[int]) -> Floats:
        return self.wrong(self.products[list(which)].copy(), which)


def with_a_bit_turned(rows: Floats, row: int, output: int) -> Floats:
    rows.view(np.uint32)[row, output] ^= 1
    return rows


def with_10_bits(rows: Floats) -> Floats:
    """Rows as a tensor core would leave them that keeps so many."""
    return (rows.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


WRONG: dict[str, tuple[Wrong, str | None]] = {
    "nothing": (lambda rows, _: rows, None),
    "an integer's last bit": (
        lambda rows, which: with_a_bit_turned(rows, 0, 3) if which[0] == 0 else rows, "is not exact where it should be",
    ),
    "few bits": (lambda rows, _: np.concatenate([rows[:, :HALF], with_10_bits(rows[:, HALF:])], 1), "from binary64"),
    "a number that is none": (lambda rows, _: np.where(np.arange(2 * HALF) == HALF, np.nan, rows), "from binary64"),
    "a bit alone": (
        lambda rows, which: with_a_bit_turned(rows, 0, HALF) if list(which) == [47] else rows, "has other bits alone",
    ),
    "a bit among many": (
        lambda rows, which: with_a_bit_turned(rows, ROWS - 1, HALF) if len(which) == ROWS else rows,
        "has other bits among 64 rows than among 16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(name: str) -> None:
    wrong, told = WRONG[name]
    x, values = hard_rows(), hard_weights(F16_KIND).values
    fault = found_fault(Multiplied(x, values, wrong), values, x)
    assert fault is None if told is None else told in str(fault)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_integers_stay_exact_in_every_order_of_their_sums(kind: object) -> None:
    values, x = hard_weights(kind).values[:HALF], hard_rows()[: ROWS // 2]  # type: ignore[arg-type]
    assert (values == values.round()).all()
    assert np.abs(x).max() == MOST_INTEGER
    assert (np.abs(x.astype(np.float64)) @ np.abs(values).T).max() < 1 << 24
    assert x.shape[1] == INPUTS
