"""Which programs a step's products are launched with. No GPU needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.device import Launch
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_sizing.devices import WHOLE_HOPPER
from decodepool_worker.model.named_shapes import named_header

from tests.gpu.counting import CountingGpu, backend_on, named_function


def products(weights: str, rows: int, *, has_clusters: bool) -> list[Launch]:
    """Return a step's launches of products."""
    gpu = CountingGpu(WHOLE_HOPPER, has_clusters=has_clusters)
    backend = backend_on(gpu, named_header("llama-3-8b", weights), context_tokens=256, max_rows=rows)
    return [launch for launch in backend.launches(rows) if launch.name.startswith("product")]


def programs(launches: Sequence[Launch]) -> set[str]:
    return {launch.function.handle for launch in launches}


@pytest.mark.parametrize(
    ("weights", "rows", "others"),
    [
        ("Q8_0", 1, {"matmul"}),
        ("Q8_0", 16, {"matmul"}),
        ("Q4_K", 8, {"matmul", "matmul_few"}),
        ("Q4_K", 16, {"matmul"}),
    ],
)
def test_where_no_cluster_finds_room_others_take_its_products(
    weights: str, rows: int, others: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelLibrary, "function", named_function)
    assert "matmul_cluster" in programs(products(weights, rows, has_clusters=True))
    found = products(weights, rows, has_clusters=False)
    assert programs(found) == others
    assert min(launch.grid[0] for launch in found) > 0
