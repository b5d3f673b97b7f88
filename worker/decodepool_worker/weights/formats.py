"""The block formats of GGUF as integer codes: value = scale * (code - zero) + minimum, exact for every type.

One row of `FORMATS` a type. A decoder takes blocks `[n, block_bytes]` as bytes and gives codes `[n, block]` (u8),
scales and minima `[n, block / sub_block]`, those of k-quants as the products that they are. Layouts as ggml defines
them (ggml-common.h); a test holds each against gguf's own dequantiser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from decodepool_kernels.scales import Factored, Scales
from numpy.typing import NDArray

Bytes = NDArray[Any]
"""uint8 throughout; NumPy's stubs forget it wherever a Python integer takes part."""

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16)
E8M0_NAN = 255
FP4_VALUES_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int16)


@dataclass(frozen=True, eq=False)
class Codes:
    """Decoded blocks. `minima` None where the type has none."""

    codes: Bytes
    scales: Scales
    minima: Scales | None = None


@dataclass(frozen=True)
class Format:
    """How one type is decoded, and the code that stands for zero."""

    zero: int
    decode: Callable[[Bytes], Codes]


def _f16(blocks: Bytes, start: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16)


def _nibbles(packed: Bytes) -> Bytes:
    """Return low nibbles, then high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _bits(packed: Bytes) -> Bytes:
    """Return each byte's 8 bits, lowest first."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _q4_0(b: Bytes) -> Codes:
    return Codes(_nibbles(b[:, 2:]), _f16(b, 0))


def _q4_1(b: Bytes) -> Codes:
    return Codes(_nibbles(b[:, 4:]), _f16(b, 0), _f16(b, 2))


def _q5_0(b: Bytes) -> Codes:
    return Codes(_nibbles(b[:, 6:]) | _bits(b[:, 2:6]) << 4, _f16(b, 0))


def _q5_1(b: Bytes) -> Codes:
    return Codes(_nibbles(b[:, 8:]) | _bits(b[:, 4:8]) << 4, _f16(b, 0), _f16(b, 2))


def _q8_0(b: Bytes) -> Codes:
    return Codes(b[:, 2:] ^ 0x80, _f16(b, 0))


def _iq4_nl(b: Bytes) -> Codes:
    return Codes((IQ4_VALUES + 127).astype(np.uint8)[_nibbles(b[:, 2:])], _f16(b, 0))


def _mxfp4(b: Bytes) -> Codes:
    exponents = b[:, :1].astype(np.int32)
    scales = np.ldexp(np.float32(1.0), exponents - 128).astype(np.float32)
    scales[exponents == E8M0_NAN] = np.nan
    return Codes((FP4_VALUES_DOUBLED + 12).astype(np.uint8)[_nibbles(b[:, 1:])], scales)


def _pairs_of_bits(packed: Bytes) -> Bytes:
    """Return 2-bit fields of halves of 32 bytes: pair k of a half gives elements 32 k to 32 k + 31."""
    halves = packed.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return (halves & 3).reshape(len(packed), 256)


def _q2_k(b: Bytes) -> Codes:
    factors = b[:, :16]
    scales, minima = (half.view(np.int8) for half in (factors & 15, factors >> 4))
    return Codes(_pairs_of_bits(b[:, 16:80]), Factored(_f16(b, 80), scales), Factored(-_f16(b, 82), minima))


def _q3_k(b: Bytes) -> Codes:
    high = _bits(b[:, :32]).reshape(-1, 32, 8).transpose(0, 2, 1).reshape(-1, 256)
    packed = b[:, 96:108]
    low = _nibbles(packed[:, :8])
    top = (packed[:, 8:, None].transpose(0, 2, 1) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)) & 3
    factors = (low | top.reshape(-1, 16) << 4).view(np.int8) - np.int8(32)
    return Codes(_pairs_of_bits(b[:, 32:96]) | high << 2, Factored(_f16(b, 108), factors))


def _six_bit_scales(b: Bytes) -> tuple[Factored, Factored]:
    """Return the 8 scales and 8 minima that Q4_K and Q5_K keep in 12 bytes behind what they multiply."""
    packed = b[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return Factored(_f16(b, 0), scales.view(np.int8)), Factored(-_f16(b, 2), minima.view(np.int8))


def _nibble_pairs(packed: Bytes) -> Bytes:
    """Return codes of sub-blocks of 32: each run of 32 bytes holds sub-block 2c low and 2c + 1 high."""
    runs = packed.reshape(-1, 4, 32)
    return np.stack([runs & 15, runs >> 4], axis=2).reshape(-1, 256)


def _q4_k(b: Bytes) -> Codes:
    return Codes(_nibble_pairs(b[:, 16:]), *_six_bit_scales(b))


def _q5_k(b: Bytes) -> Codes:
    fifth = _bits(b[:, 16:48]).reshape(-1, 32, 8).transpose(0, 2, 1).reshape(-1, 256)
    return Codes(_nibble_pairs(b[:, 48:]) | fifth << 4, *_six_bit_scales(b))


def _q6_k(b: Bytes) -> Codes:
    halves = b[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([halves & 15, halves >> 4], axis=2).reshape(-1, 2, 128)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = (b[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 2, 128)
    codes = (low | high << 4).reshape(-1, 256)
    return Codes(codes, Factored(_f16(b, 208), np.ascontiguousarray(b[:, 192:208]).view(np.int8)))


FORMATS: dict[str, Format] = {
    "Q4_0": Format(8, _q4_0),
    "Q4_1": Format(0, _q4_1),
    "Q5_0": Format(16, _q5_0),
    "Q5_1": Format(0, _q5_1),
    "Q8_0": Format(128, _q8_0),
    "IQ4_NL": Format(127, _iq4_nl),
    "MXFP4": Format(12, _mxfp4),
    "Q2_K": Format(0, _q2_k),
    "Q3_K": Format(4, _q3_k),
    "Q4_K": Format(0, _q4_k),
    "Q5_K": Format(0, _q5_k),
    "Q6_K": Format(32, _q6_k),
}
