"""docs/arithmetic.md once more, in NumPy: every operation as its written sequence of roundings.

NumPy rounds each f32 operation once, so only the fused multiply-add has to be made: exact product in f64, sum rounded
to odd, then to f32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
Integers = NDArray[np.int64]

LANES, BLOCK, PAGE, GROUP_PAGES = 16, 32, 64, 8
F16_LARGEST = np.float32(65504.0)


def fma(a: Floats | np.float32, b: Floats | np.float32, c: Floats | np.float32) -> Floats:
    """a * b + c rounded once to f32, for finite operands. The product of two f32 is exact in f64; a sum rounded to odd
    loses nothing by being rounded again to 24 bits, since 53 >= 24 + 2.
    """
    product, addend = np.float64(a) * np.float64(b), np.float64(c)
    total = np.asarray(product + addend)
    shadow = total - product
    error = (product - (total - shadow)) + (addend - shadow)
    is_even = total.view(np.int64) & 1 == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    odd = np.where((error != 0) & is_even, np.nextafter(total, towards), total)
    return odd.astype(np.float32)


def tree(lanes: Floats) -> Floats:
    """Sum of 16 lanes `[..., 16]`: lane i with lane i + 8, then 4, 2, 1."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return np.asarray(lanes[..., 0])


def exp(x: Floats) -> Floats:
    """e^x by Cephes' polynomial; 0 under -87."""
    f = np.float32
    held = np.maximum(x, f(-87.0))
    n = np.rint(held * f(1.44269504088896341))
    r = fma(n, f(-0.693359375), held)
    r = fma(n, f(2.12194440e-4), r)
    p: Floats = np.full_like(r, f(1.9875691500e-4))
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, f(coefficient))
    p = fma(r * r, p, r + f(1.0))
    return np.where(x < f(-87.0), f(0.0), p * np.ldexp(f(1.0), n.astype(np.int32)).astype(np.float32))


def quantise(x: Floats) -> tuple[Integers, Floats]:
    """Activations `[rows, inputs]` as q `[rows, blocks, 32]` and d `[rows, blocks]`."""
    blocks = x.reshape(len(x), -1, BLOCK)
    largest: Floats = np.abs(blocks).max(axis=2)
    tiny = largest < np.float32(2.0**-100)
    largest[tiny] = 1.0
    inverse: Floats = np.float32(32512.0) / largest
    inverse[tiny] = 0.0
    q = np.rint(blocks * inverse[:, :, None]).astype(np.int64)
    return q, largest / np.float32(32512.0)


def matmul(codes: Integers, scales: Floats, minima: Floats | None, zero: int, x: Floats) -> Floats:
    """Product `[rows, outputs]` of x with a quantised matrix: codes `[outputs, inputs]`, scales and minima `[outputs,
    sub-blocks]`.
    """
    q, d = quantise(x)
    parts = scales.shape[1] * BLOCK // codes.shape[1]
    q = q.reshape(len(x), -1, BLOCK // parts)
    shifted = codes.reshape(len(codes), -1, BLOCK // parts).astype(np.int64) - zero
    y = np.zeros((len(x), len(codes)), np.float32)
    for part in range(scales.shape[1]):
        step = d[:, part // parts, None]
        sums = q[:, part] @ shifted[:, part].T
        y = fma(sums.astype(np.float32) * step, scales[None, :, part], y)
        if minima is not None:
            total = q[:, part].sum(axis=1).astype(np.float32)[:, None] * step
            y = fma(total, minima[None, :, part], y)
    return y


def matmul_float(weights: Floats, x: Floats) -> Floats:
    """Product `[rows, outputs]` of f32 weights `[outputs, inputs]` with x: a chain of fma a block, blocks added."""
    y = np.zeros((len(x), len(weights)), np.float32)
    for first in range(0, weights.shape[1], BLOCK):
        total = np.zeros_like(y)
        for k in range(first, first + BLOCK):
            total = fma(weights[None, :, k], x[:, k, None], total)
        y = y + total
    return y


def norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """RMS norm of vectors `[..., width]`; lanes past the width hold zero."""
    width = x.shape[-1]
    padded = np.zeros((*x.shape[:-1], -(-width // LANES) * LANES), np.float32)
    padded[..., :width] = x
    squares = np.zeros((*x.shape[:-1], LANES), np.float32)
    for first in range(0, padded.shape[-1], LANES):
        lanes = padded[..., first : first + LANES]
        squares = fma(lanes, lanes, squares)
    mean = tree(squares) / np.float32(width)
    r = np.float32(1.0) / np.sqrt(mean + np.float32(epsilon))
    y: Floats = (x * r[..., None]) * weight
    return y


def rope(
    x: Floats, positions: Sequence[int], frequencies: Sequence[float], magnitude: float, interleaved: bool
) -> Floats:
    """Heads `[rows, heads, width]` rotated by each row's position."""
    half = len(frequencies)
    angles = [[position * frequency for frequency in frequencies] for position in positions]
    c = np.array([[math.cos(angle) * magnitude for angle in row] for row in angles], np.float32)[:, None]
    s = np.array([[math.sin(angle) * magnitude for angle in row] for row in angles], np.float32)[:, None]
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    )
    out = x.copy()
    out[..., first] = fma(x[..., first], c, -(x[..., second] * s))
    out[..., second] = fma(x[..., first], s, x[..., second] * c)
    return out


def swiglu(gate: Floats, up: Floats) -> Floats:
    """silu(gate) * up, the gate held at -88 from below."""
    held = np.maximum(gate, np.float32(-88.0))
    out: Floats = held / (np.float32(1.0) + exp(-held)) * up
    return out


def kept(values: Floats, kind: str) -> Floats:
    """What a page gives back of heads `[..., width]`."""
    if kind == "f32":
        return values
    held = np.clip(values, -F16_LARGEST, F16_LARGEST)
    if kind == "f16":
        return held.astype(np.float16).astype(np.float32)
    blocks = held.reshape(*values.shape[:-1], -1, BLOCK)
    largest = np.minimum(np.abs(blocks).max(axis=-1) / np.float32(127.0), np.float32(515.5))
    scale = largest.astype(np.float16).astype(np.float32)[..., None]
    ratio = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)
    q = np.clip(np.rint(ratio), np.float32(-127.0), np.float32(127.0))
    return np.asarray((scale * q).astype(np.float16), np.float32).reshape(values.shape)


State = tuple[np.float32, np.float32, Floats]
"""Largest score, sum of weights, weighted sum of values."""


def capped(scores: Floats, cap: float) -> Floats:
    """cap tanh(s / cap): s times a ratio of polynomials in (s / cap)^2, held within 9 caps first."""
    limit = np.float32(9) * np.float32(cap)
    held = np.clip(scores, -limit, limit)
    y = held * np.float32(1 / cap)
    numerator = horner((1.3419828804e-8, 2.0661267627e-5, 3.4989963751e-3, 1.3383980095e-1, 1.0), y * y)
    denominator = horner((7.8047321495e-7, 3.2910387381e-4, 2.5890206918e-2, 4.6717301011e-1, 1.0), y * y)
    found: Floats = held * (numerator / denominator)
    return found


def horner(coefficients: Sequence[float], z: Floats) -> Floats:
    """A polynomial from its highest power down, each step fused."""
    value: Floats = np.full_like(z, coefficients[0])
    for coefficient in coefficients[1:]:
        value = fma(value, z, np.float32(coefficient))
    return value


def block_state(q: Floats, keys: Floats, values: Floats, scale: np.float32, first: int, cap: float | None) -> State:
    """One query over the tokens from `first` to the last visible one of one block: keys and values `[tokens, width]`,
    at most 64.
    """
    scores = np.zeros(len(keys), np.float32)
    for dim in range(len(q)):
        scores = fma(q[dim], keys[:, dim], scores)
    scores = scores * scale
    if cap is not None:
        scores = capped(scores, cap)
    largest = scores[first:].max()
    p = np.zeros(PAGE, np.float32)
    p[first : len(keys)] = exp(scores[first:] - largest)
    lanes = reduce(np.add, p.reshape(-1, LANES))
    mixed = np.zeros(values.shape[1], np.float32)
    for weight, value in zip(p[first:], values[first:], strict=False):
        mixed = fma(weight, value, mixed)
    return largest, np.float32(tree(lanes)), mixed


def fold(total: State, part: State) -> State:
    """Two states as one, the earlier first."""
    largest = max(total[0], part[0])
    a, b = exp(np.array([total[0] - largest, part[0] - largest], np.float32))
    weights = np.float32(fma(total[1], a, np.float32(part[1] * b)))
    return largest, weights, fma(total[2], a, part[2] * b)


def attention(
    q: Floats,
    keys: Floats,
    values: Floats,
    scale: float,
    *,
    window: int | None = None,
    sink: np.float32 | None = None,
    cap: float | None = None,
) -> Floats:
    """One query head `[width]` over every token `[tokens, width]` up to its own, or the last `window` of them: 64 a
    block, 8 blocks a group, groups into the row, the sink last.
    """
    unseen = 0 if window is None else max(0, len(keys) - window)
    groups: dict[int, list[State]] = {}
    for first in range(unseen // PAGE * PAGE, len(keys), PAGE):
        tokens = slice(first, first + PAGE)
        state = block_state(q, keys[tokens], values[tokens], np.float32(scale), max(0, unseen - first), cap)
        groups.setdefault(first // (PAGE * GROUP_PAGES), []).append(state)
    states = [reduce(fold, blocks) for blocks in groups.values()]
    if sink is not None:
        states.append((sink, np.float32(1), np.zeros_like(states[0][2])))
    _, weights, mixed = reduce(fold, states)
    return mixed / weights
