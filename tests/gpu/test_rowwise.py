"""What works row by row: near f64, the same bytes at every width, and fused as one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.packing import pack_quantised
from decodepool_kernels.graph import Graph, Matrix, Rotation, Tensor, Vector

from tests.gpu.probe import Build, Floats, Probe, Rows, numbers, relative_error
from tests.kernels.matrices import TYPES, planes

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu
    from numpy.typing import NDArray

pytestmark = pytest.mark.gpu

WIDTHS = (1, 2, 5, 8, 9, 31, 64, 512)
X, Y = numbers(1, 512, 576), numbers(2, 512, 576)
WEIGHT, HEAD_WEIGHT = numbers(3, 576), numbers(4, 64)
EPSILON = 1e-5


def rms(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON))


def norm(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(x / rms(x) * WEIGHT)


def head_norm(x: NDArray[np.float64]) -> NDArray[np.float64]:
    heads = x.reshape(len(x), 9, 64)
    return (heads / rms(heads) * HEAD_WEIGHT).reshape(x.shape)


def silu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(x / (1 + np.exp(-x)))


@dataclass(frozen=True)
class Case:
    """An operation on x and y, what it should give, and the error it may have."""

    build: Build
    wanted: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]
    bound: float


CASES = {
    "norm": Case(lambda g, t: g.norm(t["x"], Vector("w", 576), EPSILON), lambda x, _: norm(x), 3e-7),
    "norm of heads": Case(lambda g, t: g.norm(t["x"], Vector("h", 64), EPSILON, 9), lambda x, _: head_norm(x), 3e-7),
    "swiglu": Case(lambda g, t: g.swiglu(t["x"], t["y"]), lambda x, y: silu(x) * y, 3e-7),
    "add": Case(lambda _, t: t["x"] + t["y"], lambda x, y: (x + y).astype(np.float32).astype(np.float64), 0.0),
}


def probe_of(gpu: Gpu, build: Build, *, fused: bool = True) -> Probe:
    w = planes("Q8_0", 100, 576)
    packed = pack_quantised(w.layout, w.codes, w.scales, None, w.zero)
    vectors = {"w": WEIGHT, "h": HEAD_WEIGHT}
    return Probe(gpu, {"x": X, "y": Y}, build, matrices={"m": packed}, vectors=vectors, fused=fused)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_an_operation_is_near_f64_and_the_same_bytes_at_every_width(gpu: Gpu, case: Case) -> None:
    probe = probe_of(gpu, case.build)
    alone = np.concatenate([probe.rows([row]) for row in range(512)])
    assert relative_error(alone, case.wanted(X.astype(np.float64), Y.astype(np.float64))) <= case.bound
    for width in WIDTHS:
        assert probe.rows(range(width)).tobytes() == alone[:width].tobytes(), width


M = Matrix("m", 576, 100)
FUSED: dict[str, Callable[[Graph, dict[str, Tensor], int], Tensor]] = {
    "norm": lambda g, t, width: g.norm(t["x"], Vector("w", width), EPSILON),
    "add and norm": lambda g, t, width: g.norm(t["x"] + t["y"], Vector("w", width), EPSILON),
    "swiglu": lambda g, t, _: g.swiglu(t["x"], t["y"]),
}
QUANTISED = {
    "no sums, a part of a stride": ("Q8_0", 576),
    "no sums, whole strides": ("Q8_0", 2048),
    "sums of halves, whole strides": ("Q5_1", 2048),
    "sums of groups, a part of a stride": ("Q4_K", 768),
    "sums of groups, whole strides": ("Q4_K", 2048),
}
"""Types of matrices, which decide on the sums beside an activation, and widths: a stride is 8 slices of 128."""


@pytest.mark.parametrize(("name", "width"), QUANTISED.values(), ids=list(QUANTISED))
@pytest.mark.parametrize("build", FUSED.values(), ids=list(FUSED))
def test_fused_with_what_quantises_it_has_the_bytes_of_one_by_one(
    gpu: Gpu, build: Callable[[Graph, dict[str, Tensor], int], Tensor], name: str, width: int
) -> None:
    w = planes(name, 100, width)
    packed = pack_quantised(w.layout, w.codes, w.scales, w.minima, w.zero)
    inputs = {"x": numbers(1, 64, width), "y": numbers(2, 64, width)}

    def product(g: Graph, t: dict[str, Tensor]) -> Tensor:
        return g.matmul(build(g, t, width), Matrix("m", width, 100))

    vectors = {"w": numbers(3, width)}
    probes = [
        Probe(gpu, inputs, product, matrices={"m": packed}, vectors=vectors, fused=fused) for fused in (True, False)
    ]
    for rows in (1, 3, 40):
        found = [probe.rows(range(rows)) for probe in probes]
        assert found[0].tobytes() == found[1].tobytes(), rows
        assert np.isfinite(found[0]).all()


def test_gates_of_every_size_beside_rare_ones_have_the_bytes_of_one_by_one(gpu: Gpu) -> None:
    w = planes("Q8_0", 100, 576)
    packed = pack_quantised(w.layout, w.codes, w.scales, None, w.zero)
    random = np.random.default_rng(7)
    sizes = np.exp2(np.array([-99.0, -97, -60, -20, 0, 3, 5, 6]))[:, None]
    gates = random.uniform(1, 1.2, (16, 576)) * random.choice([-1, 1], (16, 576)) * np.tile(sizes, (2, 1))
    gates[8:][random.random((8, 576)) < 0.1] = 0.0
    for row, rare in ((12, -100.0), (13, -3e38), (14, -1e30), (15, 81.0)):
        gates[row][random.random(576) < 0.1] = rare
    inputs = {"x": gates.astype(np.float32), "y": numbers(5, 16, 576)}

    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        return g.matmul(g.swiglu(t["x"], t["y"]), M)

    fused, plain = (Probe(gpu, inputs, build, matrices={"m": packed}, fused=fused) for fused in (True, False))
    for row in range(16):
        assert fused.rows([row]).tobytes() == plain.rows([row]).tobytes(), row
    assert fused.rows(range(16)).tobytes() == plain.rows(range(16)).tobytes()
    assert (np.abs(plain.rows(range(16))).max(1) > 0).all()


def test_the_sum_that_a_fused_norm_leaves_is_the_residual(gpu: Gpu) -> None:
    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        total = t["x"] + t["y"]
        g.matmul(g.norm(total, Vector("w", 576), EPSILON), M)
        return total

    assert probe_of(gpu, build).rows(range(40)).tobytes() == (X + Y)[:40].tobytes()


@pytest.mark.parametrize("interleaved", [True, False])
def test_heads_turn_by_their_angles(gpu: Gpu, interleaved: bool) -> None:
    frequencies = tuple(10000.0 ** (-i / 24) for i in range(24))
    rotation = Rotation(frequencies, 1.25, interleaved)
    probe = probe_of(gpu, lambda g, t: g.rope(t["x"], 9, rotation))
    runs = [Rows([row], range(33), position) for row, position in enumerate((0, 1, 63, 64, 1000, 2047))]
    found = probe.step(*runs)
    assert relative_error(found, turned(X[:6].reshape(6, 9, 64), [run.position for run in runs], rotation)) < 1e-7
    assert all(probe.step(run).tobytes() == found[row].tobytes() for row, run in enumerate(runs))


def turned(x: Floats, positions: list[int], rotation: Rotation) -> NDArray[np.float64]:
    angles = np.outer(positions, rotation.frequencies)[:, None]
    c, s = np.cos(angles) * rotation.magnitude, np.sin(angles) * rotation.magnitude
    half = len(rotation.frequencies)
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if rotation.interleaved else (slice(half), slice(half, 2 * half))
    )
    out = x.astype(np.float64)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first], out[..., second] = a * c - b * s, a * s + b * c
    return out.reshape(len(x), -1)


@pytest.mark.parametrize("name", TYPES)
def test_an_embedding_is_the_matrixs_row(gpu: Gpu, name: str) -> None:
    w = planes(name, 100, 576)
    packed = pack_quantised(w.layout, w.codes, w.scales, w.minima, w.zero)
    tokens = [0, 7, 8, 15, 16, 41, 99]
    probe = Probe(gpu, {"x": X}, lambda g, _: g.embed(Matrix("m", 576, 100)), matrices={"m": packed})
    assert relative_error(probe.rows(tokens), w.values[tokens]) < 1e-7
