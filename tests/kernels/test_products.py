"""Matrix products: the written roundings to the bit, and f64 within a bound."""

from __future__ import annotations

import numpy as np
import pytest
from decodepool_kernels.cpu.packing import FloatMatrix, PackedMatrix, pack_float
from decodepool_kernels.graph import Matrix

from tests.kernels import arithmetic
from tests.kernels.matrices import TYPES, planes
from tests.kernels.probe import Floats, Probe, Rows, assert_same_bits, numbers, vector

INPUTS, OUTPUTS, ROWS = 256, 41, 9
FLOAT_TYPES = ("F32", "F16", "BF16")
HARD = {
    "plain": numbers(1, ROWS, INPUTS),
    "one element far above the rest": numbers(2, ROWS, INPUTS)
    * np.where(np.arange(INPUTS) % 37 == 5, 1e4, 1).astype(np.float32),
    "large": numbers(3, ROWS, INPUTS, spread=1e30),
    "small": numbers(4, ROWS, INPUTS, spread=1e-25),
    "some blocks zero": numbers(5, ROWS, INPUTS) * (np.arange(INPUTS) // 32 % 3 > 0).astype(np.float32),
}


def product(x: Floats, packed: PackedMatrix, bias: Floats | None = None, threads: int = 1) -> Floats:
    matrix = Matrix("m", x.shape[1], packed.outputs)
    handle = None if bias is None else vector("b", bias)
    vectors = {} if bias is None else {"b": bias}
    with Probe(
        {"x": x},
        lambda g, t: {"y": g.matmul(t["x"], matrix, handle)},
        matrices={"m": packed},
        vectors=vectors,
        threads=threads,
    ) as probe:
        return probe.rows(range(len(x)))


def float_matrix(name: str, weights: Floats) -> tuple[FloatMatrix, Floats]:
    """Return weights packed as a type, and the f32 that the type gives back."""
    if name == "F32":
        return pack_float(name, weights), weights
    if name == "F16":
        bits = weights.astype(np.float16).view(np.uint16)
        return pack_float(name, bits), bits.view(np.float16).astype(np.float32)
    bits = (weights.view(np.uint32) >> 16).astype(np.uint16)
    return pack_float(name, bits), (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("case", HARD.values(), ids=list(HARD))
def test_a_quantised_product_takes_the_written_roundings(name: str, case: Floats) -> None:
    w = planes(name, OUTPUTS, INPUTS)
    wanted = arithmetic.matmul(w.codes.astype(np.int64), w.wide_scales, w.wide_minima, w.zero, case)
    assert_same_bits(product(case, w.packed), wanted)


@pytest.mark.parametrize("name", TYPES)
def test_a_quantised_product_is_near_f64(name: str) -> None:
    """An activation is off by at most half a step, d/2 with d = max |x| / 32512, plus the f32 roundings of its own
    scaling: under 0.51 d together. The fold rounds 3 times a sub-block and plane (f32(I), times d, fma), each 2^-24
    of a partial sum that never exceeds sum |w| |x|.
    """
    w, x = planes(name, OUTPUTS, INPUTS), HARD["one element far above the rest"]
    step = np.abs(x.reshape(ROWS, -1, 32)).max(axis=2, keepdims=True).astype(np.float64) / 32512
    off = np.broadcast_to(0.51 * step, (ROWS, INPUTS // 32, 32)).reshape(ROWS, INPUTS)
    magnitudes = np.repeat(np.abs(w.wide_scales.astype(np.float64)), w.layout.sub_block, axis=1) * np.abs(
        w.codes.astype(np.float64) - w.zero
    )
    if w.wide_minima is not None:
        magnitudes += np.repeat(np.abs(w.wide_minima.astype(np.float64)), w.layout.sub_block, axis=1)
    roundings = 6 * INPUTS // w.layout.sub_block
    bound = off @ np.abs(w.values).T + roundings * 2.0**-24 * (np.abs(x.astype(np.float64)) @ magnitudes.T)
    exact = x.astype(np.float64) @ w.values.T
    assert (np.abs(product(x, w.packed) - exact) <= bound).all()


@pytest.mark.parametrize("name", FLOAT_TYPES)
@pytest.mark.parametrize("case", HARD.values(), ids=list(HARD))
def test_a_float_product_takes_the_written_roundings(name: str, case: Floats) -> None:
    packed, weights = float_matrix(name, numbers(7, OUTPUTS, INPUTS, spread=0.05))
    assert_same_bits(product(case, packed), arithmetic.matmul_float(weights, case))


@pytest.mark.parametrize("name", FLOAT_TYPES)
def test_a_float_product_is_near_f64(name: str) -> None:
    """32 fma a block and one sum for each of 8 blocks: at most 40 roundings of partial sums bounded by sum |w x|."""
    packed, weights = float_matrix(name, numbers(7, OUTPUTS, INPUTS, spread=0.05))
    x = HARD["plain"].astype(np.float64)
    bound = (32 + INPUTS // 32) * 2.0**-24 * (np.abs(x) @ np.abs(weights.astype(np.float64)).T)
    assert (np.abs(product(HARD["plain"], packed) - x @ weights.astype(np.float64).T) <= bound).all()


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "F16"])
def test_a_bias_is_added_last(name: str) -> None:
    x, bias = HARD["plain"], numbers(9, OUTPUTS)
    packed = (
        planes(name, OUTPUTS, INPUTS).packed if name in TYPES else float_matrix(name, numbers(7, OUTPUTS, INPUTS))[0]
    )
    assert_same_bits(product(x, packed, bias), product(x, packed) + bias)


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 259])
def test_tiles_that_are_not_full_give_the_same_outputs(outputs: int) -> None:
    x, w = HARD["plain"], planes("Q4_K", 259, INPUTS)
    scales, minima = w.wide_scales[:outputs], None if w.wide_minima is None else w.wide_minima[:outputs]
    cut = type(w)(w.codes[:outputs], scales, minima, w.zero, w.layout)
    assert_same_bits(product(x, cut.packed), product(x, w.packed)[:, :outputs])


def test_a_matrix_of_one_block_is_a_product_too() -> None:
    x = numbers(11, 3, 32)
    w = planes("Q8_0", 5, 32)
    assert_same_bits(product(x, w.packed), arithmetic.matmul(w.codes.astype(np.int64), w.wide_scales, None, w.zero, x))


def test_matrices_that_share_an_input_share_its_integers() -> None:
    x, first, second = HARD["plain"], planes("Q4_0", 16, INPUTS, 1), planes("Q6_K", 48, INPUTS, 2)
    with Probe(
        {"x": x},
        lambda g, t: {"a": g.matmul(t["x"], Matrix("a", INPUTS, 16)), "b": g.matmul(t["x"], Matrix("b", INPUTS, 48))},
        matrices={"a": first.packed, "b": second.packed},
        threads=2,
    ) as probe:
        found = probe.step(*(Rows((token,)) for token in range(ROWS)))
    assert_same_bits(found["a"], product(x, first.packed))
    assert_same_bits(found["b"], product(x, second.packed))
