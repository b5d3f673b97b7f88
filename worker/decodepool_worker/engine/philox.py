"""Philox4x32-10, a counter-based generator: number n of a stream is a function of (seed, n), with no state to lose.

J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The constants are
theirs, as in Random123 and cuRAND.
"""

from __future__ import annotations

Counter = tuple[int, int, int, int]

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def philox4x32(counter: Counter, key: tuple[int, int]) -> Counter:
    """Return the four 32-bit words of `counter` under `key`, all words unsigned."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low = _MULTIPLIERS[0] * c0
        high = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & _WORD, (low >> 32) ^ c3 ^ k1, low & _WORD
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that draws token `position` of a session with this seed.

    Key: the seed's low and high 32 bits. Counter: the position's low and high, then two words of zero, kept for other
    streams of one session. The first two words of the answer, 64 bits, are cut to the 53 that a float64 holds.
    """
    return (uniform_bits(seed, position) >> 11) * 2.0**-53


def uniform_bits(seed: int, position: int) -> int:
    """Return the 64 bits that `uniform` cuts to 53."""
    words = philox4x32((position & _WORD, position >> 32, 0, 0), (seed & _WORD, seed >> 32))
    return words[0] << 32 | words[1]
