"""Amounts of memory as options."""

from __future__ import annotations

from decodepool_sizing.quantities import exact_bytes, parse_bytes

from decodepool_cli.faults import bad_input

LEAST_BYTES = 1 << 20
"""Nothing that is run fits into less: whoever asks for it has left the unit out."""


def amount_option(text: str | None, option: str) -> int | None:
    """Return the bytes that an option asks for; bad input where it is no amount, or one without its unit."""
    if text is None:
        return None
    try:
        amount = parse_bytes(text)
    except ValueError as error:
        raise bad_input(f"{option}: {error}") from None
    if amount < LEAST_BYTES:
        hint = f"; for {text} GiB, say {option} {text}GiB" if text.isdecimal() else ""
        raise bad_input(f"{option}: {exact_bytes(amount)} is less than anything needs{hint}")
    return amount
