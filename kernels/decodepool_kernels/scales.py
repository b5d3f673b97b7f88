"""Scales of quantised matrices: arrays, or as k-quants have them, products of an f16 and a small integer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Factored:
    """Scales or minima `[rows, n]`: `factors` (int8, of that shape) times `units` (f16, `[rows, m]`), one for each
    n / m factors.
    """

    units: NDArray[np.float16]
    factors: NDArray[np.int8]

    @property
    def products(self) -> NDArray[np.float32]:
        """The scales, exact in f32."""
        spread = np.repeat(self.units.astype(np.float32), self.factors.shape[1] // self.units.shape[1], axis=1)
        with np.errstate(invalid="ignore"):  # an infinite unit times 0
            return spread * self.factors.astype(np.float32)

    def reshape(self, rows: int, _: int) -> Factored:
        """Return the same scales in `rows` rows, as an array's `reshape(rows, -1)`."""
        return Factored(self.units.reshape(rows, -1), self.factors.reshape(rows, -1))


Scales = NDArray[Any] | Factored


def products_of(scales: Scales) -> NDArray[Any]:
    """Return scales as one array."""
    return scales.products if isinstance(scales, Factored) else scales


def is_finite(scales: Scales) -> bool:
    """Return whether all are numbers. Factors are."""
    return bool(np.isfinite(scales.units if isinstance(scales, Factored) else scales).all())
