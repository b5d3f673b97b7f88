"""A gate made where its product ends has the bytes of products and gate one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import products as cuts
from decodepool_kernels.graph import Graph, Matrix, Tensor, Vector

from tests.gpu.probe import Build, Floats, Probe, numbers
from tests.gpu.test_products import made
from tests.kernels.matrices import TYPES

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu

pytestmark = pytest.mark.gpu

WIDTH, GATED = 1056, 608
"""Inputs, and gates: four units of 128 and most of a fifth."""
WIDTHS = (24, 31, 48, 64, 65, 256, 512)
BIASES = {"gate bias": numbers(5, GATED), "up bias": numbers(6, GATED)}
TYPE_PAIRS = [*((name, name) for name in (*TYPES, "F16", "BF16")), ("Q8_0", "Q5_0")]


def gated(bias: bool) -> Build:
    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        gate, up = (
            g.matmul(t["x"], Matrix(name, WIDTH, GATED), Vector(f"{name} bias", GATED) if bias else None)
            for name in ("gate", "up")
        )
        return g.matmul(g.swiglu(gate, up), Matrix("down", GATED, 64))

    return build


def probe_of(gpu: Gpu, x: Floats, types: tuple[str, str], *, bias: bool, fused: bool) -> Probe:
    matrices = {name: made(kind, GATED, WIDTH)[0] for name, kind in zip(("gate", "up"), types, strict=True)}
    matrices["down"] = made("Q8_0", 64, GATED)[0]
    return Probe(gpu, {"x": x}, gated(bias), matrices=matrices, vectors=BIASES, fused=fused)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("types", TYPE_PAIRS, ids="+".join)
def test_a_product_that_gates_has_the_bytes_of_one_that_does_not(
    gpu: Gpu, types: tuple[str, str], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = numbers(1, 512, WIDTH)
    plain = probe_of(gpu, x, types, bias=bias, fused=False)
    wanted = {width: plain.rows(range(width)).tobytes() for width in WIDTHS}
    monkeypatch.setattr(cuts, "FEWEST_SLICES", 0)
    fused = probe_of(gpu, x, types, bias=bias, fused=True)
    for width in WIDTHS:
        assert [launch.name for launch in fused.launches(width)].count("quantise") == 2, "x, and what was gated"
        assert fused.rows(range(width)).tobytes() == wanted[width], width


@pytest.mark.parametrize("spread", [1e-35, 1e-30, 1e-3, 10.0, 1e3, 1e30, 1e37])
def test_gates_of_every_size_have_their_bytes(gpu: Gpu, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, what is no normal number, and what is beyond e^88 among them."""
    monkeypatch.setattr(cuts, "FEWEST_SLICES", 0)
    x = numbers(1, 64, WIDTH, spread=spread)
    x[3], x[4, :], x[5, 7] = 0.0, -0.0, np.inf
    fused, plain = (probe_of(gpu, x, ("Q8_0", "Q8_0"), bias=False, fused=fused) for fused in (True, False))
    assert fused.rows(range(64)).tobytes() == plain.rows(range(64)).tobytes()


def test_slices_left_apart_are_gated_by_the_kernel_behind(gpu: Gpu) -> None:
    probe = probe_of(gpu, numbers(1, 64, WIDTH), ("Q8_0", "Q8_0"), bias=False, fused=True)
    assert "swiglu_quantise" in [launch.name for launch in probe.launches(64)]
