"""Which programs a step is launched with, and what they are told of each other. No GPU needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import programs
from decodepool_kernels.cuda.backend import SHARED, CudaBackend
from decodepool_kernels.cuda.device import Launch
from decodepool_kernels.cuda.inputs import NARROW, StepKind
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.programs import MOST_EARLY_ROWS
from decodepool_sizing.devices import WHOLE_HOPPER, GpuCores
from decodepool_worker.model.named_shapes import named_header

from tests.gpu.counting import CountingGpu, backend_on, named_function

ACTIVATION, SUMS, ROW = 1, 6, 7
"""Arguments of a product of many rows: what it takes, where its sums go, and the floats that a slice of a row has."""
LINE_BYTES = 128
"""What attention drops at once."""
H100_PCIE = GpuCores(114, 227 << 10, is_hopper=True)


@pytest.fixture(autouse=True)
def _without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelLibrary, "function", named_function)


def backend(weights: str, rows: int, cores: GpuCores = WHOLE_HOPPER, *, has_clusters: bool = True) -> CudaBackend:
    """Return what runs steps of Llama-3-8B of up to `rows` rows."""
    gpu = CountingGpu(cores, has_clusters=has_clusters)
    return backend_on(gpu, named_header("llama-3-8b", weights), context_tokens=256, max_rows=rows)


def step(backend: CudaBackend, rows: int, kind: StepKind = NARROW) -> list[Launch]:
    """Return the launches of a step of rows that each have a session."""
    return backend._launches(rows, kind)


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


def test_a_step_begins_with_its_words_then_the_tables_of_its_turns_are_made_beside_its_embedding() -> None:
    launches = step(backend("Q8_0", 1), 1)
    assert [program(launch) for launch in launches[:4]] == ["bring", "embed", "rope_table", "norm_quantise"]
    assert [program(launch) for launch in launches].count("rope_table") == 1


@pytest.mark.parametrize(("rows", "blocks"), [(1, 8), (16, 8), (33, 8), (48, 4), (64, 4), (512, 4)])
def test_a_rows_best_token_is_found_by_as_many_blocks_as_all_run_at_once(rows: int, blocks: int) -> None:
    for has_clusters, found in ((True, ("argmax_cluster", (blocks, rows))), (False, ("argmax", (32, rows)))):
        launch = step(backend("Q8_0", rows, has_clusters=has_clusters), rows)[-1]
        assert (program(launch), launch.grid) == found


def folds(rows: int, *, has_clusters: bool = True) -> set[tuple[str, tuple[int, int]]]:
    launches = step(backend("Q8_0", rows, has_clusters=has_clusters), rows)
    return {(program(launch), launch.grid) for launch in launches if launch.name == "fold_quantise"}


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_where_no_cluster_finds_room_a_block_a_slice_folds_few_rows(rows: int) -> None:
    assert folds(rows) == {("fold_cluster", (32, rows))}
    assert folds(rows, has_clusters=False) == {("fold_quantise", (rows, 8))}


@pytest.mark.parametrize("rows", [5, 24])
def test_a_block_a_slice_folds_many_rows(rows: int) -> None:
    assert folds(rows) == {("fold_quantise", (rows, 8))}


@pytest.mark.parametrize(
    ("has_clusters", "name", "blocks"), [(True, "draw_cluster", 24), (False, "draw", 3)], ids=["room", "none"]
)
def test_where_no_cluster_finds_room_a_block_draws_a_rows_token(has_clusters: bool, name: str, blocks: int) -> None:
    gpu = CountingGpu(WHOLE_HOPPER, has_clusters=has_clusters)
    backend_on(gpu, named_header("llama-3-8b", "Q8_0"), context_tokens=256, max_rows=4)._draws.draw(3)
    (launch,) = gpu.launched
    assert (program(launch), launch.grid) == (name, (blocks, 1))
    assert defines(launch)["ITEMS"] * 1024 * launch.grid[0] >= 3 * 128_256


@pytest.mark.parametrize(
    ("rows", "taker"),
    [(1, "matmul_few"), (2, "matmul_few"), (4, "matmul_few"), (5, "matmul_cluster"), (16, "matmul_cluster")],
)
def test_a_product_runs_beside_the_one_ahead_that_takes_its_activation_by_the_same_program(
    rows: int, taker: str
) -> None:
    launches = step(backend("Q4_K_M", rows), rows)
    beside = [(ahead, launch) for ahead, launch in pairwise(launches) if defines(launch).get("BESIDE")]
    assert len(beside) == 16
    for ahead, launch in beside:
        assert (program(ahead), program(launch)) == (taker, taker)
        assert ahead.arguments[1].value == launch.arguments[1].value


@pytest.mark.parametrize("rows", [5, 8, 16])
def test_in_clusters_it_takes_those_left_by_the_one_ahead_which_alone_starts_it_behind_the_activation(
    rows: int,
) -> None:
    launches = step(backend("Q4_K_M", rows), rows)
    beside = [(ahead, launch) for ahead, launch in pairwise(launches) if defines(launch).get("BESIDE")]
    assert beside
    assert [launch for launch in launches if defines(launch).get("LEADS")] == [ahead for ahead, _ in beside]
    for ahead, launch in beside:
        assert ahead.grid[0] + launch.grid[0] <= WHOLE_HOPPER.multiprocessors


def test_in_clusters_none_runs_beside_one_that_leaves_too_few() -> None:
    launches = step(backend("Q4_K_M", 16, H100_PCIE), 16)
    assert "matmul_cluster" in {program(launch) for launch in launches}
    assert not [launch for launch in launches if defines(launch).get("BESIDE") or defines(launch).get("LEADS")]


def test_no_product_runs_beside_one_in_clusters_which_lets_it_start_before_the_activation_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "prefers_clusters", lambda kind, rows: kind.code_bits == 4)
    launches = step(backend("Q4_K_M", 1), 1)
    behind = [launch for ahead, launch in pairwise(launches) if program(ahead) == "matmul_cluster"]
    assert {defines(launch)["BESIDE"] for launch in behind if program(launch) == "matmul_few"} == {0}


@pytest.mark.parametrize("rows", [1, 4, 8, 24])
@pytest.mark.parametrize("cores", [WHOLE_HOPPER, GpuCores(108, 163 << 10)], ids=["H200", "A100"])
@pytest.mark.parametrize(("weights", "has_clusters"), [("Q8_0", True), ("Q4_K", True), ("F16", True), ("F16", False)])
def test_a_norm_lets_its_product_start_at_once_for_few_rows_alone(
    weights: str, has_clusters: bool, cores: GpuCores, rows: int
) -> None:
    of_steps = backend(weights, rows, cores, has_clusters=has_clusters)
    norms = [launch for launch in step(of_steps, rows) if program(launch) == "norm_quantise"]
    is_early = cores.is_hopper and rows <= MOST_EARLY_ROWS
    assert {defines(launch)["EARLY"] for launch in norms} == {int(is_early)}


@pytest.mark.parametrize(("weights", "has_clusters"), [("Q4_0", True), ("Q5_1", True), ("Q8_0", False)])
def test_it_does_not_where_thread_blocks_of_the_product_could_crowd_on_an_sm(weights: str, has_clusters: bool) -> None:
    launches = step(backend(weights, 1, has_clusters=has_clusters), 1)
    norms = [launch for launch in launches if program(launch) == "norm_quantise"]
    assert {defines(launch)["EARLY"] for launch in norms} == {0}


@pytest.mark.parametrize("rows", [24, 64, 128, 256, 512])
def test_a_product_of_many_rows_runs_beside_the_one_ahead_where_the_slices_of_both_are_taken_together(
    rows: int,
) -> None:
    launches = step(backend("Q4_K_M", rows), rows)
    beside = [(ahead, launch) for ahead, launch in pairwise(launches) if defines(launch).get("BESIDE")]
    for ahead, launch in beside:
        assert (program(ahead), program(launch)) == ("matmul_warpgroup", "matmul_warpgroup")
        assert ahead.arguments[ACTIVATION].value == launch.arguments[ACTIVATION].value
    assert len(beside) == (16 if rows <= 128 else 0)


@pytest.mark.parametrize("cores", [WHOLE_HOPPER, GpuCores(108, 163 << 10)], ids=["H200", "A100"])
def test_slices_taken_together_lie_beside_each_other(cores: GpuCores) -> None:
    launches = step(backend("Q4_K_M", 64, cores), 64)
    values = [(ahead, launch) for ahead, launch in pairwise(launches) if launch.name == "product 1024 x 4096"]
    for ahead, launch in values:
        assert (defines(ahead)["SPLIT"], defines(launch)["SPLIT"]) == (1, 1)
        assert (ahead.arguments[ROW].value, launch.arguments[ROW].value) == (4096 + 1024 + 1024,) * 2
        assert launch.arguments[SUMS].value == ahead.arguments[SUMS].value + 4 * (4096 + 1024)
    assert len(values) == 16


@pytest.mark.parametrize("weights", ["Q8_0", "Q4_K_M"])
@pytest.mark.parametrize("rows", [16, 64, 512])
def test_attention_drops_whole_lines_of_the_slices_that_the_rotation_ahead_has_folded_and_no_others(
    rows: int, weights: str
) -> None:
    of_steps = backend(weights, rows)
    found = [(ahead, launch) for ahead, launch in pairwise(step(of_steps, rows)) if program(launch) == "attention"]
    for ahead, launch in found:
        dropped, row_bytes = launch.arguments[-2].value or 0, launch.arguments[-1].value
        slices = ahead.arguments[-1]
        is_apart = bool(defines(ahead)["APART"])
        assert program(ahead) == "rope_append"
        assert (defines(launch)["SPENT"], dropped) == ((1, slices.sums) if is_apart else (0, 0))
        assert row_bytes % LINE_BYTES == 0
        assert rows * row_bytes <= of_steps._programs._sums.size_bytes
    assert {defines(launch)["SPENT"] for _, launch in found} == {int(rows == 64)}


@pytest.mark.parametrize(
    ("cores", "widths"),
    [(WHOLE_HOPPER, {1, 2, 4, 8}), (GpuCores(108, 163 << 10), set())],
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
