"""Kubernetes' amounts of resources: `500m`, `1Gi`, `1e3`. The API server writes them in a form of its own."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

_QUANTITY = re.compile(
    r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(?:(m|u|n|k|[MGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
_UNITS: dict[str, Fraction] = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": Fraction(1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("MGTPE", start=2)},
    **{letter + "i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}  # fmt: skip


def amount(value: Any) -> Fraction:
    """Return the number that a quantity stands for; ValueError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r:.40} is not a quantity")
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"{value!r:.40} is not a quantity")
    number, unit, exponent = match.groups()
    scale = Fraction(10) ** int(exponent) if exponent else _UNITS.get(unit, Fraction(1))
    return Fraction(number) * scale


def same_quantity(one: Any, other: Any) -> bool:
    """Say whether two values are the same amount, however it is written. Other texts are never the same."""
    if not (isinstance(one, str) and isinstance(other, str | int)) or isinstance(other, bool):
        return False
    try:
        return amount(one) == amount(other)
    except ValueError:
        return False
