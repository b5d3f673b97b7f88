"""Matrix products: every type near f64, every width and cut to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import cluster_cuts, programs
from decodepool_kernels.cuda import products as cuts
from decodepool_kernels.cuda.packing import PackedMatrix, pack_float, pack_quantised, quant_kind
from decodepool_kernels.graph import Graph, Matrix, Tensor, Vector
from decodepool_kernels.scales import products_of
from decodepool_sizing.layouts import QUANT_LAYOUTS

from tests.gpu.probe import Floats, Probe, numbers, relative_error
from tests.kernels.matrices import TYPES, planes

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu
    from numpy.typing import NDArray

pytestmark = pytest.mark.gpu

BOUND, CHAINED_BOUND = 5e-7, 1e-6
"""Of the products' root mean square, and of types whose groups are one chain: a tensor core cuts off the sum after
every step, of which a chain has 16 in place of 4. 2e-7 and 4e-7 were read, 6e-7 of a row with outliers.
"""
FLOATS = ("F32", "F16", "BF16")
INPUTS = (32, 96, 576, 1024, 1056, 4096)
L40S_SHARED_BYTES = 101_376
WIDTHS = (1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100, 256, 511, 512)


def made(name: str, outputs: int, inputs: int) -> tuple[PackedMatrix, NDArray[np.float64]]:
    """Return a random matrix of a type, packed, and what it stands for."""
    if name in FLOATS:
        weights = numbers(7, outputs, inputs)
        if name == "F32":
            return pack_float(name, weights), weights.astype(np.float64)
        bits = (
            weights.astype(np.float16).view(np.uint16)
            if name == "F16"
            else (weights.view(np.uint32) >> 16).astype(np.uint16)
        )
        wide = (
            bits.view(np.float16).astype(np.float64)
            if name == "F16"
            else (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        )
        return pack_float(name, bits), wide
    w = planes(name, outputs, inputs)
    return pack_quantised(w.layout, w.codes, w.scales, w.minima, w.zero), w.values


def bound(name: str) -> float:
    """Return how far a type's products may be from f64."""
    return CHAINED_BOUND if name in QUANT_LAYOUTS and quant_kind(QUANT_LAYOUTS[name]).has_group_chains else BOUND


def products(
    gpu: Gpu,
    x: Floats,
    matrices: Sequence[PackedMatrix],
    *,
    read: int = 0,
    fused: bool = True,
    bias: Floats | None = None,
) -> Probe:
    """Return a probe of products of one tensor, the one to be read by its index."""

    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        handle = None if bias is None else Vector("b", len(bias))
        return [g.matmul(t["x"], Matrix(str(i), m.inputs, m.outputs), handle) for i, m in enumerate(matrices)][read]

    vectors = {} if bias is None else {"b": np.concatenate([bias, np.zeros(-len(bias) % 32, np.float32)])}
    return Probe(
        gpu, {"x": x}, build, matrices={str(i): m for i, m in enumerate(matrices)}, vectors=vectors, fused=fused
    )


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("name", [*TYPES, *FLOATS])
def test_a_product_is_near_f64(gpu: Gpu, name: str, inputs: int) -> None:
    packed, values = made(name, 41, inputs)
    x, bias = numbers(1, 9, inputs), numbers(2, 41)
    found = products(gpu, x, [packed], bias=bias).rows(range(9))
    assert relative_error(found, x.astype(np.float64) @ values.T + bias) < bound(name)


@pytest.mark.parametrize("name", [*TYPES, *FLOATS])
def test_a_row_has_the_same_bytes_at_every_width(gpu: Gpu, name: str) -> None:
    packed, _ = made(name, 137, 1056)
    probe = products(gpu, numbers(1, 512, 1056), [packed])
    alone = np.concatenate([probe.rows([row]) for row in range(512)])
    for width in WIDTHS:
        assert probe.rows(range(width)).tobytes() == alone[:width].tobytes(), width
        assert probe.rows(range(511, 511 - width, -1)).tobytes() == alone[::-1][:width].tobytes(), width


@pytest.mark.parametrize("name", [*TYPES, "F16", "BF16"])
def test_sums_handed_from_block_to_block_are_those_of_slices_left_apart(
    gpu: Gpu, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, _ = made(name, 600, 1056)
    probe = products(gpu, numbers(1, 512, 1056), [packed])
    apart = {width: probe.rows(range(width)).tobytes() for width in (24, 32, 48, 64, 65, 100, 256, 512)}
    monkeypatch.setattr(cuts, "FEWEST_SLICES", 0)
    for width, found in apart.items():
        for _ in range(3):
            assert probe.rows(range(width)).tobytes() == found, width


@pytest.mark.parametrize("name", [*TYPES, "F16", "BF16"])
def test_warpgroups_and_warps_give_the_same_bytes(gpu: Gpu, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, _ = made(name, 137, 1056)
    probe = products(gpu, numbers(1, 512, 1056), [packed])
    found = {width: probe.rows(range(width)).tobytes() for width in (24, 32, 64, 65, 512)}
    monkeypatch.setattr(programs, "WARPGROUP_CAPABILITY", 0)
    for width, bytes_of in found.items():
        assert probe.rows(range(width)).tobytes() == bytes_of, width


@pytest.mark.parametrize(("outputs", "inputs"), [(137, 1056), (7000, 1056), (137, 8192)])
@pytest.mark.parametrize("name", [name for name in TYPES if QUANT_LAYOUTS[name].is_factored])
def test_few_rows_have_the_bytes_of_the_program_for_every_gpu(
    gpu: Gpu, name: str, outputs: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PRODUCT_CLUSTER_CAPABILITY", 0)
    packed, _ = made(name, outputs, inputs)
    probe = products(gpu, numbers(1, 8, inputs), [packed])
    found = {width: probe.rows(range(width)).tobytes() for width in range(1, 9)}
    monkeypatch.setattr(programs, "FEW_CAPABILITY", 0)
    for width, bytes_of in found.items():
        assert probe.rows(range(width)).tobytes() == bytes_of, width


@pytest.mark.parametrize("outputs", [137, 6000])
@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_K"])
def test_little_shared_memory_gives_the_same_bytes(
    gpu: Gpu, name: str, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, _ = made(name, outputs, 1056)
    probe = products(gpu, numbers(1, 64, 1056), [packed])
    found = {width: probe.rows(range(width)).tobytes() for width in (1, 8, 9, 17, 64)}
    for capability in ("WARPGROUP_CAPABILITY", "FEW_CAPABILITY", "PRODUCT_CLUSTER_CAPABILITY"):
        monkeypatch.setattr(programs, capability, 0)
    monkeypatch.setattr(gpu, "shared_bytes", L40S_SHARED_BYTES)
    for width, bytes_of in found.items():
        assert probe.rows(range(width)).tobytes() == bytes_of, width


@pytest.mark.parametrize(("outputs", "inputs"), [(41, 1056), (137, 1056), (4200, 1056), (6000, 1056), (137, 14336)])
@pytest.mark.parametrize("name", [*TYPES, "F16"])
def test_slices_shared_out_over_a_cluster_have_the_bytes_of_the_program_for_every_gpu(
    gpu: Gpu, name: str, outputs: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, _ = made(name, outputs, inputs)
    probe = products(gpu, numbers(1, 16, inputs), [packed])
    monkeypatch.setattr(programs, "prefers_clusters", lambda kind, rows: True)
    monkeypatch.setattr(cluster_cuts, "LEAST_BUSY", {1: 0.0, 2: 0.0})
    monkeypatch.setattr(programs, "FEW_CAPABILITY", 0)
    found = {width: probe.rows(range(width)).tobytes() for width in range(1, 17)}
    for capability in ("PRODUCT_CLUSTER_CAPABILITY", "WARPGROUP_CAPABILITY"):
        monkeypatch.setattr(programs, capability, 0)
    for width, bytes_of in found.items():
        assert probe.rows(range(width)).tobytes() == bytes_of, width


def test_many_outputs_are_cut_otherwise_and_have_the_same_bytes(gpu: Gpu) -> None:
    """20,000 outputs take 64 a block, the first 1,000 of them 32."""
    w = planes("Q8_0", 20000, 1024)
    few = pack_quantised(w.layout, w.codes[:1000], products_of(w.scales)[:1000], None, w.zero)
    many = pack_quantised(w.layout, w.codes, w.scales, None, w.zero)
    x = numbers(1, 512, 1024)
    for rows in (1, 12, 40, 512):
        found = [products(gpu, x, [packed]).rows(range(rows))[:, :1000].tobytes() for packed in (few, many)]
        assert found[0] == found[1]


@pytest.mark.parametrize("read", range(3))
def test_products_that_share_a_launch_have_the_bytes_of_each_alone(gpu: Gpu, read: int) -> None:
    matrices = [made("Q4_K", outputs, 256)[0] for outputs in (100, 37, 64)]
    x = numbers(1, 20, 256)
    together, alone = (products(gpu, x, matrices, read=read, fused=fused).rows(range(20)) for fused in (True, False))
    assert together.tobytes() == alone.tobytes()


@pytest.mark.parametrize("read", range(2))
def test_types_kept_alike_whose_codes_have_other_zeros_share_a_launch(gpu: Gpu, read: int) -> None:
    matrices = [made(name, 64, 256)[0] for name in ("Q8_0", "Q5_0")]
    assert matrices[0].kind == matrices[1].kind
    assert matrices[0].zero != matrices[1].zero
    x = numbers(1, 8, 256)
    together, alone = (products(gpu, x, matrices, read=read, fused=fused).rows(range(8)) for fused in (True, False))
    assert together.tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    "names", [("Q4_K", "Q6_K"), ("Q6_K", "Q5_K"), ("Q3_K", "Q2_K"), ("Q4_1", "Q4_K")], ids="+".join
)
@pytest.mark.parametrize("read", range(2))
def test_types_that_take_other_sums_of_one_activation_have_the_bytes_of_each_alone(
    gpu: Gpu, read: int, names: tuple[str, str]
) -> None:
    matrices, x = [made(name, 64, 512)[0] for name in names], numbers(1, 24, 512)
    together, alone = products(gpu, x, matrices, read=read), products(gpu, x, [matrices[read]])
    for rows in (1, 9, 24):
        assert together.rows(range(rows)).tobytes() == alone.rows(range(rows)).tobytes(), rows


@pytest.mark.parametrize("read", range(3))
def test_few_rows_products_beside_each_other_have_the_bytes_of_each_alone(gpu: Gpu, read: int) -> None:
    """Each row is another activation, which those that do not wait for the product ahead must not take too early."""
    shapes = {"Q4_K": 5120, "Q5_K": 1024, "Q6_K": 1024}
    matrices, x = [made(name, outputs, 4096)[0] for name, outputs in shapes.items()], numbers(1, 16, 4096)
    together, alone = products(gpu, x, matrices, read=read), products(gpu, x, [matrices[read]])
    for row in range(16):
        assert together.rows([row]).tobytes() == alone.rows([row]).tobytes(), row
    assert together.rows(range(4)).tobytes() == alone.rows(range(4)).tobytes()


SLOW = {"slow": pack_float("F32", numbers(8, 4096, 1024, spread=0.03))}
"""A product that takes long on a few SMs: what comes behind it is asked for early, and has to wait."""


def slow(g: Graph, x: Tensor) -> Tensor:
    return g.matmul(x, Matrix("slow", 1024, 4096))


@pytest.mark.parametrize("read", range(2))
def test_a_product_beside_another_waits_for_their_activation(gpu: Gpu, read: int) -> None:
    """Each row is another activation: what was there before it is the last one's."""
    matrices, x = [made("Q4_K", 5120, 4096)[0], made("Q6_K", 1024, 4096)[0]], numbers(1, 16, 1024)

    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        y = slow(g, t["x"])
        return [g.matmul(y, Matrix(str(i), m.inputs, m.outputs)) for i, m in enumerate(matrices)][read]

    placed = {str(i): matrix for i, matrix in enumerate(matrices)}
    probe = Probe(gpu, {"x": x}, build, matrices={**SLOW, **placed}, graphs=True)
    rows = probe.rows(range(4))
    for row in (0, 1, 2, 3, 1, 0):
        assert probe.rows([row]).tobytes() == rows[row].tobytes(), row


@pytest.mark.parametrize("outputs", [137, 4200])
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K", "F16"])
def test_few_rows_products_wait_for_the_norm_that_lets_them_start(
    gpu: Gpu, name: str, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_cuts, "LEAST_BUSY", {1: 0.0, 2: 0.0})
    packed, x = made(name, outputs, 4096)[0], numbers(1, 32, 1024)

    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        return g.matmul(g.norm(slow(g, t["x"]), Vector("w", 4096), 1e-5), Matrix("m", 4096, outputs))

    probe = Probe(gpu, {"x": x}, build, matrices={**SLOW, "m": packed}, vectors={"w": numbers(2, 4096)}, graphs=True)
    rows = probe.rows(range(32))
    for width in (1, 2, 4):
        for first in range(0, 32, width):
            found = probe.rows(range(first, first + width))
            assert found.tobytes() == rows[first : first + width].tobytes(), (width, first)


@pytest.mark.parametrize("rows", [5, 8, 9, 16])
@pytest.mark.parametrize("outputs", [(5120, 1024), (96, 64)], ids=str)
@pytest.mark.parametrize("names", [("Q4_K", "Q6_K"), ("Q5_K", "Q6_K"), ("Q4_K", "Q8_0")], ids="+".join)
def test_products_beside_each_other_in_clusters_wait_for_their_activation(
    gpu: Gpu, names: tuple[str, str], outputs: tuple[int, int], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has other activations: what was there before them is the last one's."""
    monkeypatch.setattr(cluster_cuts, "LEAST_BUSY", {1: 0.0, 2: 0.0})
    matrices = {name: made(name, count, 4096)[0] for name, count in zip(names, outputs, strict=True)}
    x = numbers(1, 64, 1024)

    def probe(read: str, *made_of: str) -> Probe:
        def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
            y = slow(g, t["x"])
            return {name: g.matmul(y, Matrix(name, 4096, matrices[name].outputs)) for name in made_of}[read]

        return Probe(gpu, {"x": x}, build, matrices={**SLOW, **matrices}, graphs=True)

    for read in names:
        together, alone = probe(read, *names), probe(read, read).rows(range(64))
        for first in range(64 - rows):
            found = together.rows(range(first, first + rows))
            assert found.tobytes() == alone[first : first + rows].tobytes(), first


HARD = {
    "one channel far above the rest": lambda x: x * np.where(np.arange(x.shape[1]) % 509 == 5, 1e4, 1),
    "large": lambda x: x * 1e30,
    "small": lambda x: x * 1e-30,
    "zeros": lambda x: x * (np.arange(x.shape[1]) // 128 % 3 > 0),
    "constant": lambda x: np.full_like(x, 65504.0),
}


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("name", ["Q8_0", "Q2_K", "Q3_K", "Q4_K"])
def test_hard_rows_stay_near_f64(gpu: Gpu, name: str, case: str) -> None:
    packed, values = made(name, 64, 2048)
    x = HARD[case](numbers(3, 9, 2048)).astype(np.float32)
    found = products(gpu, x, [packed]).rows(range(9)).astype(np.float64)
    assert relative_error(found, x.astype(np.float64) @ values.T) < bound(name)


@pytest.mark.parametrize("fault", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_1", "Q3_K", "Q4_K", "BF16", "F32"])
def test_a_fault_shows_in_its_row_and_in_no_other(gpu: Gpu, name: str, fault: float) -> None:
    packed, _ = made(name, 64, 1024)
    x = numbers(1, 20, 1024)
    before = products(gpu, x, [packed]).rows(range(20))
    x[6, 700] = fault
    after = products(gpu, x, [packed]).rows(range(20))
    assert not np.isfinite(after[6]).any()
    assert np.delete(after, 6, axis=0).tobytes() == np.delete(before, 6, axis=0).tobytes()
