"""Who folds a product's slices: the operation that takes all of its results, or a launch of its own. No GPU needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from decodepool_kernels.cuda.lower import Lowering
from decodepool_kernels.cuda.packing import MatrixKind
from decodepool_kernels.cuda.pages import LayerPages
from decodepool_kernels.cuda.records import Columns, DeviceMatrix, LogitsRows, Record, Scratch, Weights
from decodepool_kernels.graph import Graph, Matrix, Rotation, Tensor, Vector

WIDTH = 64
KINDS = {
    "o": MatrixKind(8, 32, has_minimum=False, scale_bytes=2),
    "other": MatrixKind(4, 32, has_minimum=True, scale_bytes=2),
}
MATRICES = {name: DeviceMatrix(kind, WIDTH, WIDTH, 0, 0, 0) for name, kind in KINDS.items()}
ROTATION = Rotation((1.0,) * 16, 1.0, interleaved=True)


@dataclass(frozen=True)
class Pages:
    """One layer's pages, nowhere."""

    layers: tuple[LayerPages, ...] = (LayerPages(0, 0),)
    kv_bits: int = 16


def product(x: Tensor, name: str = "o") -> Tensor:
    return x.graph.matmul(x, Matrix(name, WIDTH, WIDTH))


def norm(x: Tensor) -> Tensor:
    return x.graph.norm(x, Vector("w", WIDTH), 1e-5)


def attention(x: Tensor, value: str = "o") -> Tensor:
    q, k, v = product(x), product(x), product(x, value)
    q, k = x.graph.rope(q, 2, ROTATION), x.graph.rope(k, 2, ROTATION)
    return x.graph.attention(q, k, v, layer=0, heads=2, kv_heads=2, scale=1.0)


def residual(x: Tensor) -> None:
    product(norm(x + product(x)))


def addend_asked_for_first(x: Tensor) -> None:
    addend = product(x)
    x.graph.norm(addend, Vector("h", WIDTH // 2), 1e-5, 2)
    product(norm(x + addend))


def product_between(x: Tensor) -> None:
    addend = product(x)
    product(norm(x))
    product(norm(x + addend))


def normed_heads(x: Tensor) -> None:
    q, k, v = product(x), product(x), product(x)
    q = x.graph.norm(q, Vector("h", WIDTH // 2), 1e-5, 2)
    x.graph.attention(
        x.graph.rope(q, 2, ROTATION), x.graph.rope(k, 2, ROTATION), v, layer=0, heads=2, kv_heads=2, scale=1.0
    )


def product_beside(x: Tensor) -> None:
    addend = product(x)
    product(x, "other")
    product(norm(x + addend))


CASES: dict[str, tuple[Callable[[Tensor], object], list[bool]]] = {
    "a norm takes what its residual sum adds": (residual, [True, False]),
    "not what was asked for before": (addend_asked_for_first, [False, False]),
    "not what another product came behind": (product_between, [False, False, False]),
    "rotation takes queries, keys and values at once": (attention, [True]),
    "so it does where they are products of two launches": (lambda x: attention(x, "other"), [True, True]),
    "not beside a product that it does not take": (product_beside, [False, False, False]),
    "not where queries are normed before": (normed_heads, [False]),
}


def lowered(build: Callable[[Tensor], object], *, fused: bool = True) -> list[Record]:
    graph = Graph()
    build(graph.embed(Matrix("o", WIDTH, WIDTH)))
    weights = Weights(MATRICES, {"w": 0, "h": 0}, 0)
    pages: Any = Pages()
    rows = (LogitsRows(0, 0), Scratch(0, 0), 64, Columns(64))
    lowering = Lowering(weights, pages, *rows, 0, 0, lambda _: 0, fused)
    return lowering.lower(graph).records


@pytest.mark.parametrize(("build", "wanted"), CASES.values(), ids=list(CASES))
def test_slices_are_taken(build: Callable[[Tensor], object], wanted: list[bool]) -> None:
    records = lowered(build)
    products = [record.leaves for record in records if record.leaves is not None]
    assert [apart.is_taken for apart in products] == wanted
    takers = [record.takes for record in records if record.takes is not None]
    assert takers == list(dict.fromkeys(apart for apart in products if apart.is_taken))


@pytest.mark.parametrize("build", [residual, attention])
def test_one_operation_a_launch_takes_nothing(build: Callable[[Tensor], object]) -> None:
    assert not any(record.takes for record in lowered(build, fused=False))
