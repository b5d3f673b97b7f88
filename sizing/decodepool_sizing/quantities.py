"""Amounts of memory as people write them: `80GiB`, `512Mi`, `1.5G`, `1073741824`."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {"": 1}
for _power, _letter in enumerate("KMGTPE", start=1):
    for _suffix in ("i", "iB"):
        _UNITS[_letter + _suffix] = 1024**_power
    for _suffix in ("", "B"):
        _UNITS[_letter + _suffix] = 1000**_power
_UNITS |= {"B": 1, "k": 1000, "kB": 1000}

QUANTITY_PATTERN = r"^[0-9]{1,19}(\.[0-9]{1,9})?([KMGTPE]i?B?|kB?|B)?$"
"""The texts that `parse_bytes` takes, for schemas."""

_QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)([A-Za-z]{0,3})")
LARGEST_BYTES = 1 << 60


def parse_bytes(text: str) -> int:
    """Return the bytes that a quantity stands for: binary units with `i`, decimal without, as in Kubernetes.
    ValueError otherwise.
    """
    match = _QUANTITY.fullmatch(text.strip())
    unit = _UNITS.get(match.group(2)) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text[:40]!r} is not an amount of memory such as 80GiB, 512Mi or 1073741824")
    amount = Fraction(match.group(1)) * unit
    if amount.denominator != 1 or not 0 < amount <= LARGEST_BYTES:
        raise ValueError(f"{text[:40]!r} is not a whole number of bytes from 1 to 1Ei")
    return int(amount)


def exact_bytes(amount: int) -> str:
    """Return an amount to the byte, and for people: `1618498816 bytes (1.5 GiB)`."""
    return f"{amount} bytes ({format_bytes(amount)})" if amount >= 1024 else f"{amount} bytes"


def format_bytes(amount: int) -> str:
    """Return an amount for people, in binary units: `93.8 MiB`."""
    size = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{amount} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB" if abs(size) < 1024 else f"{size:,.0f} TiB"
