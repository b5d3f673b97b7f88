"""How the elements of a KV cache are stored, and how many bytes a row takes."""

from __future__ import annotations

from enum import StrEnum

PAGE_TOKENS = 64
"""Tokens in a page. A page is also one split of attention, so this is arithmetic: see docs/arithmetic.md."""

QUANT_BLOCK = 32
QUANT_BLOCK_BYTES = 34


class KVType(StrEnum):
    """The type of keys and values; `q8_0` keeps 32 8-bit integers and an f16 scale, 34 bytes for 32 elements."""

    F16 = "f16"
    F32 = "f32"
    Q8_0 = "q8_0"

    def can_hold(self, length: int) -> bool:
        """Say whether a head of `length` elements is a whole number of this type's blocks."""
        return self is not KVType.Q8_0 or length % QUANT_BLOCK == 0

    def vector_bytes(self, length: int) -> int:
        """Return the bytes of one head's `length` elements; ValueError where they are not whole blocks."""
        if self is KVType.F16:
            return 2 * length
        if self is KVType.F32:
            return 4 * length
        if not self.can_hold(length):
            raise ValueError(f"kv type q8_0: a head of {length} elements is not whole blocks of {QUANT_BLOCK}")
        return length // QUANT_BLOCK * QUANT_BLOCK_BYTES


def pages(tokens: int) -> int:
    """Return how many pages `tokens` tokens take."""
    return -(-tokens // PAGE_TOKENS)
