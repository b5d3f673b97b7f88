"""Slices of products that are left apart: who takes them makes of them what a launch that folds them first would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import products, programs
from decodepool_kernels.cuda.packing import PackedMatrix, pack_quantised
from decodepool_kernels.cuda.pages import KvPages
from decodepool_kernels.graph import Graph, Matrix, Rotation, Tensor, Vector

from tests.gpu.probe import Build, Probe, Rows, numbers
from tests.kernels.matrices import planes

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu

pytestmark = pytest.mark.gpu

WIDTH, HEADS, KV_HEADS, DIM = 576, 9, 3, 64
WIDTHS = (24, 31, 40, 64, 65, 256)
X = numbers(1, 256, WIDTH)
ROTATION = Rotation(tuple(10000.0 ** (-i / 24) for i in range(24)), 1.25, interleaved=False)
"""Of 24 of a head's 32 pairs: the others are appended as they are."""


def packed(outputs: int, seed: int) -> PackedMatrix:
    w = planes("Q8_0", outputs + seed, WIDTH)
    assert isinstance(w.scales, np.ndarray)
    return pack_quantised(w.layout, w.codes[seed:], w.scales[seed:], None, w.zero)


MATRICES = {
    "o": packed(WIDTH, 0),
    "q": packed(HEADS * DIM, 1),
    "k": packed(KV_HEADS * DIM, 2),
    "v": packed(KV_HEADS * DIM, 3),
}
VECTORS = {"w": numbers(2, WIDTH), "bias": numbers(3, WIDTH), "q_bias": numbers(4, HEADS * DIM)}


def product(g: Graph, x: Tensor, name: str, bias: str | None = None) -> Tensor:
    matrix = MATRICES[name]
    return g.matmul(x, Matrix(name, WIDTH, matrix.outputs), None if bias is None else Vector(bias, matrix.outputs))


def residual(bias: str | None) -> Build:
    """The norm of a sum that a product ends in, quantised for the next product."""

    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        total = t["x"] + product(g, t["x"], "o", bias)
        return total + product(g, g.norm(total, Vector("w", WIDTH), 1e-5), "o")

    return build


def attended(g: Graph, t: dict[str, Tensor]) -> Tensor:
    q, k, v = product(g, t["x"], "q", "q_bias"), product(g, t["x"], "k"), product(g, t["x"], "v")
    q, k = g.rope(q, HEADS, ROTATION), g.rope(k, KV_HEADS, ROTATION)
    return g.attention(q, k, v, layer=0, heads=HEADS, kv_heads=KV_HEADS, scale=0.125)


def probe_of(
    gpu: Gpu, build: Build, *, kind: str = "f16", fused: bool = True, matrices: Mapping[str, PackedMatrix] = MATRICES
) -> Probe:
    pages = KvPages(gpu, [(KV_HEADS, DIM)], 8, kind)
    return Probe(gpu, {"x": X}, build, matrices=matrices, vectors=VECTORS, pages=pages, fused=fused)


def kernels(probe: Probe, rows: int) -> list[str]:
    return [launch.name for launch in probe.launches(rows)]


@pytest.mark.parametrize("bias", [None, "bias"])
def test_a_norm_takes_the_slices_of_its_addend(gpu: Gpu, bias: str | None) -> None:
    fused, plain = (probe_of(gpu, residual(bias), fused=fused) for fused in (True, False))
    for width in WIDTHS:
        found = fused.rows(range(width))
        assert found.tobytes() == plain.rows(range(width)).tobytes(), width
        assert np.isfinite(found).all()
    assert kernels(fused, 64).count("fold_slices") == kernels(plain, 64).count("fold_slices") - 1


def require_same_steps(fused: Probe, plain: Probe) -> None:
    """Steps of any width, whose rows see a page and more, leave the same bytes."""
    for width in WIDTHS:
        rows = Rows(range(width), range(8), 70)
        found = fused.step(rows)
        assert found.tobytes() == plain.step(rows).tobytes(), width
        assert np.isfinite(found).all()


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_rotation_takes_the_slices_of_queries_keys_and_values(gpu: Gpu, kind: str) -> None:
    fused, plain = (probe_of(gpu, attended, kind=kind, fused=fused) for fused in (True, False))
    require_same_steps(fused, plain)
    assert "fold_slices" not in kernels(fused, 64)
    assert kernels(plain, 64).count("fold_slices") == 3


def of_types(*types: str) -> dict[str, PackedMatrix]:
    """Matrices of queries, keys and values, each of its own type."""
    found = {}
    for name, type_ in zip("qkv", types, strict=True):
        w = planes(type_, MATRICES[name].outputs, WIDTH, ord(name))
        found[name] = pack_quantised(w.layout, w.codes, w.scales, w.minima, w.zero)
    return found


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize(
    "types", [("Q4_K", "Q4_K", "Q6_K"), ("Q3_K", "Q3_K", "Q5_K"), ("Q8_0", "Q4_1", "Q5_0")], ids=str
)
def test_it_takes_those_of_several_products_that_ran_beside_each_other(
    gpu: Gpu, types: tuple[str, str, str], kind: str
) -> None:
    matrices = of_types(*types)
    fused, plain = (probe_of(gpu, attended, kind=kind, fused=fused, matrices=matrices) for fused in (True, False))
    require_same_steps(fused, plain)
    assert "fold_slices" not in kernels(fused, 64)
    assert kernels(plain, 64).count("fold_slices") == 3


def test_so_it_does_by_the_program_for_every_gpu(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "WARPGROUP_CAPABILITY", 0)
    matrices = of_types("Q3_K", "Q3_K", "Q5_K")
    fused, plain = (probe_of(gpu, attended, fused=fused, matrices=matrices) for fused in (True, False))
    for width in WIDTHS:
        rows = Rows(range(width), range(8), 70)
        assert fused.step(rows).tobytes() == plain.step(rows).tobytes(), width
    assert "fold_slices" not in kernels(fused, 64)


def test_products_whose_slices_are_many_together_fold_their_own(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "FEWEST_SLICES", 34 / gpu.sm_count)
    matrices = of_types("Q4_K", "Q4_K", "Q6_K")
    fused, plain = (probe_of(gpu, attended, fused=fused, matrices=matrices) for fused in (True, False))
    for width in WIDTHS:
        rows = Rows(range(width), range(8), 70)
        assert fused.step(rows).tobytes() == plain.step(rows).tobytes(), width
    assert kernels(fused, 64).count("fold_slices") == 2


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_slices_that_attention_drops_are_there_again_in_the_next_step(gpu: Gpu, kind: str) -> None:
    fused, plain = (probe_of(gpu, attended, kind=kind, fused=fused) for fused in (True, False))
    for probe in (fused, plain):
        probe.step(Rows(range(200), range(8), 70))  # sessions that share pages find in them what each writes
    for width in (24, 200, 64, 64):
        rows = [Rows([token], range(8), 70 + token) for token in range(width)]
        assert fused.step(*rows).tobytes() == plain.step(*rows).tobytes(), width
    assert "attention" in kernels(fused, 64)


def test_slices_stay_until_rotation_has_read_them_though_attention_starts_on_sms_that_the_product_has_left(
    gpu: Gpu,
) -> None:
    """320 slices of half units: of 132 SMs 76 are left by the product when the others begin their third."""
    heads, kv_heads, dim, inputs = 24, 8, 128, 8192
    w = planes("Q8_0", 192, inputs)
    assert isinstance(w.scales, np.ndarray)
    tiles = [
        pack_quantised(w.layout, w.codes[at : at + 64], w.scales[at : at + 64], None, w.zero) for at in (0, 64, 128)
    ]
    matrices = {
        name: replace(tile, outputs=count * dim, data=np.tile(tile.data, count * dim // 64))
        for name, tile, count in zip("qkv", tiles, (heads, kv_heads, kv_heads), strict=True)
    }
    rotation = Rotation(tuple(10000.0 ** (-i / 64) for i in range(64)), 1.0, interleaved=False)

    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        q, k, v = (g.matmul(t["x"], Matrix(name, inputs, m.outputs)) for name, m in matrices.items())
        q, k = g.rope(q, heads, rotation), g.rope(k, kv_heads, rotation)
        return g.attention(q, k, v, layer=0, heads=heads, kv_heads=kv_heads, scale=dim**-0.5)

    x = numbers(1, 200, inputs)
    fused, plain = (
        Probe(
            gpu,
            {"x": x},
            build,
            matrices=matrices,
            pages=KvPages(gpu, [(kv_heads, dim)], 4),
            fused=is_fused,
            graphs=True,
        )
        for is_fused in (True, False)
    )
    for probe in (fused, plain):
        probe.step(Rows(range(200), range(4)))
    for first in (0, 40, 80, 120, 160):
        rows = [Rows([token], range(4), token) for token in range(first, first + 40)]
        assert fused.step(*rows).tobytes() == plain.step(*rows).tobytes(), first


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_rotation_of_many_rows_without_slices_has_the_bytes_of_one_operation_a_launch(
    gpu: Gpu, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "FEWEST_SLICES", 0)
    fused, plain = (probe_of(gpu, attended, kind=kind, fused=fused) for fused in (True, False))
    for width in (127, 128, 256):
        rows = Rows(range(width), range(8), 70)
        assert fused.step(rows).tobytes() == plain.step(rows).tobytes(), width
    assert "fold_slices" not in kernels(plain, 256)
