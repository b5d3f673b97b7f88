"""Which programs a step is launched with, and what they are told of each other. No GPU needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import programs
from decodepool_kernels.cuda.backend import SHARED, CudaBackend
from decodepool_kernels.cuda.device import Launch
from decodepool_kernels.cuda.inputs import NARROW
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.programs import MOST_EARLY_ROWS
from decodepool_sizing.devices import WHOLE_HOPPER, GpuCores
from decodepool_worker.model.named_shapes import named_header

from tests.gpu.counting import CountingGpu, backend_on, named_function

LINE_BYTES = 128
"""What attention drops at once."""


@pytest.fixture(autouse=True)
def _without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelLibrary, "function", named_function)


def backend(weights: str, rows: int, cores: GpuCores = WHOLE_HOPPER, *, has_clusters: bool = True) -> CudaBackend:
    """Return what runs steps of Llama-3-8B of up to `rows` rows."""
    gpu = CountingGpu(cores, has_clusters=has_clusters)
    return backend_on(gpu, named_header("llama-3-8b", weights), context_tokens=256, max_rows=rows)


def step(backend: CudaBackend, rows: int) -> list[Launch]:
    """Return the launches of a step of rows that each have a session."""
    return backend._launches(rows, NARROW)


def program(launch: Launch) -> str:
    name: str = launch.function.handle[0]
    return name


def defines(launch: Launch) -> Mapping[str, int]:
    found: Mapping[str, int] = launch.function.handle[1]
    return found


def products(launches: Sequence[Launch]) -> list[Launch]:
    return [launch for launch in launches if launch.name.startswith("product")]


@pytest.mark.parametrize(
    ("weights", "rows", "others"),
    [
        ("Q8_0", 1, {"matmul"}),
        ("Q8_0", 16, {"matmul"}),
        ("Q4_K", 8, {"matmul", "matmul_few"}),
        ("Q4_K", 16, {"matmul"}),
    ],
)
def test_where_no_cluster_finds_room_others_take_its_products(weights: str, rows: int, others: set[str]) -> None:
    assert "matmul_cluster" in {program(launch) for launch in step(backend(weights, rows), rows)}
    found = products(step(backend(weights, rows, has_clusters=False), rows))
    assert {program(launch) for launch in found} == others
    assert min(launch.grid[0] for launch in found) > 0


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_a_product_runs_beside_the_one_ahead_where_both_are_for_few_rows_and_take_one_activation(rows: int) -> None:
    launches = step(backend("Q4_K_M", rows), rows)
    beside = [(ahead, launch) for ahead, launch in pairwise(launches) if defines(launch).get("BESIDE")]
    for ahead, launch in beside:
        assert (program(ahead), program(launch)) == ("matmul_few", "matmul_few")
        assert ahead.arguments[1].value == launch.arguments[1].value
    assert bool(beside) == (rows < 8)


def test_no_product_runs_beside_one_in_clusters_which_lets_it_start_before_the_activation_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "prefers_clusters", lambda kind, rows: kind.code_bits == 4)
    launches = step(backend("Q4_K_M", 1), 1)
    behind = [launch for ahead, launch in pairwise(launches) if program(ahead) == "matmul_cluster"]
    assert {defines(launch)["BESIDE"] for launch in behind if program(launch) == "matmul_few"} == {0}


@pytest.mark.parametrize("rows", [1, 4, 8, 24])
@pytest.mark.parametrize("cores", [WHOLE_HOPPER, GpuCores(108, is_hopper=False)], ids=["H200", "A100"])
def test_a_norm_lets_its_product_start_at_once_for_few_rows_alone(cores: GpuCores, rows: int) -> None:
    norms = [launch for launch in step(backend("Q8_0", rows, cores), rows) if program(launch) == "norm_quantise"]
    is_early = cores.is_hopper and rows <= MOST_EARLY_ROWS
    assert {defines(launch)["EARLY"] for launch in norms} == {int(is_early)}


@pytest.mark.parametrize("rows", [16, 64, 512])
def test_attention_drops_whole_lines_of_the_slices_that_the_rotation_ahead_has_folded_and_no_others(rows: int) -> None:
    of_steps = backend("Q8_0", rows)
    found = [(ahead, launch) for ahead, launch in pairwise(step(of_steps, rows)) if program(launch) == "attention"]
    for ahead, launch in found:
        dropped, row_bytes = launch.arguments[-2].value or 0, launch.arguments[-1].value
        slices = ahead.arguments[-1]
        is_apart = bool(defines(ahead)["APART"])
        assert program(ahead) == "rope_append"
        assert (defines(launch)["SPENT"], dropped) == ((1, slices.sums) if is_apart else (0, 0))
        assert row_bytes % LINE_BYTES == 0
        assert rows * row_bytes <= of_steps._programs._partial_bytes
    assert {defines(launch)["SPENT"] for _, launch in found} == {int(rows == 64)}


@pytest.mark.parametrize(
    ("cores", "widths"),
    [(WHOLE_HOPPER, {1, 2, 4, 8}), (GpuCores(108, is_hopper=False), set())],
    ids=["H200", "A100"],
)
def test_steps_of_few_rows_are_prepared_for_groups_that_teams_share_where_a_copy_engine_brings_pages(
    cores: GpuCores, widths: set[int]
) -> None:
    of_steps = backend("Q8_0", 16, cores)
    assert {width for width, kind in of_steps._steps if kind.shared} == widths
    for width in widths:
        found = [launch for launch in of_steps._launches(width, SHARED) if program(launch) == "attention"]
        assert {(defines(launch)["TEAMS"], defines(launch)["BLOCKS"]) for launch in found} == {(2, 1)}
        assert {launch.function.threads for launch in found} == {2 * 128 + 32}
