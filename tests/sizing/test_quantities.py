from __future__ import annotations

import re

import pytest
from decodepool_sizing.quantities import QUANTITY_PATTERN, exact_bytes, format_bytes, parse_bytes
from hypothesis import given
from hypothesis import strategies as st

SOUND = {
    "1": 1,
    "1073741824": 1 << 30,
    "80GiB": 80 << 30,
    "80Gi": 80 << 30,
    "512Mi": 512 << 20,
    "1.5Gi": 3 << 29,
    "4G": 4 * 10**9,
    "4GB": 4 * 10**9,
    "10k": 10_000,
    "2Ki": 2048,
    "1Ti": 1 << 40,
    "7B": 7,
}

BROKEN = ["", "0", "0Gi", "-1", "+1", "4 potatoes", "a lot", "Gi", "1e9", "4gib", "1.5", "1.0001", "1 2", "9" * 30]
BROKEN += ["1Ei1", "nan", "inf", "0x10", "1_000", "٤", "2Ei"]


@pytest.mark.parametrize("text", SOUND)
def test_an_amount_is_read(text: str) -> None:
    assert parse_bytes(text) == SOUND[text]
    assert re.match(QUANTITY_PATTERN, text)


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an amount of memory|is not a whole number of bytes"):
        parse_bytes(text)


@given(st.integers(1, 1 << 60))
def test_plain_bytes_are_themselves(amount: int) -> None:
    assert parse_bytes(str(amount)) == amount


def test_exact_amounts_are_told_for_people_too() -> None:
    assert exact_bytes(1_618_498_816) == "1618498816 bytes (1.5 GiB)"
    assert exact_bytes(16) == "16 bytes"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (98_362_432, "93.8 MiB"),
        (80 << 30, "80.0 GiB"),
        (5 << 40, "5.00 TiB"),
    ],
)
def test_amounts_for_people(amount: int, text: str) -> None:
    assert format_bytes(amount) == text
