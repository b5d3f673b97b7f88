"""What a graph becomes: barriers that hold for every order of operations, and as few records as there can be."""

from __future__ import annotations

import numpy as np
from decodepool_kernels.cpu.lower import LogitsRows, Lowering, Weights
from decodepool_kernels.cpu.pages import KvPages
from decodepool_kernels.cpu.records import OPERANDS_AT, Op
from decodepool_kernels.graph import Graph, Matrix, Rotation, Tensor

from tests.kernels.matrices import planes
from tests.kernels.probe import padded

WIDTH = 64
NAMES = ("q", "k", "v", "o")
WEIGHTS = Weights(
    {name: planes("Q8_0", WIDTH, WIDTH).packed for name in (*NAMES, "rows")}, {"w": padded(np.ones(WIDTH, np.float32))}
)


def lowered(graph: Graph) -> list[tuple[Op, bool]]:
    """Every record's operation, and whether the team meets before it."""
    pages = KvPages("f16", [(2, 32)] * 2, 4)
    program = Lowering(WEIGHTS, pages, LogitsRows(0, 0), 4, 8).lower(graph).finish()
    assert OPERANDS_AT >= 2
    return [(Op(int(record[0])), bool(record[1])) for record in program.records]


def product(graph: Graph, x: Tensor, name: str) -> Tensor:
    return graph.matmul(x, Matrix(name, WIDTH, WIDTH))


def attend(graph: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return graph.attention(q, k, v, layer=0, heads=2, kv_heads=2, scale=1.0)


def test_attention_waits_for_values_that_came_last() -> None:
    """Between the two appends the team may meet for the values alone; what comes then must still be waited for."""
    graph = Graph()
    x = graph.embed(Matrix("rows", WIDTH, WIDTH))
    q, k = product(graph, x, "q"), product(graph, x, "k")
    v = product(graph, k, "v")
    attend(graph, q, k, v)
    records = lowered(graph)
    last_append = max(index for index, (op, _) in enumerate(records) if op is Op.APPEND)
    after = records[last_append + 1 :]
    assert any(meets for op, meets in after[: [op for op, _ in after].index(Op.ATTENTION) + 1])


def test_keys_and_values_are_appended_without_waiting_for_each_other() -> None:
    graph = Graph()
    x = graph.embed(Matrix("rows", WIDTH, WIDTH))
    attend(graph, *(product(graph, x, name) for name in "qkv"))
    meets = [meets for op, meets in lowered(graph) if op is Op.APPEND]
    assert meets == [True, False]


def test_an_input_is_made_integers_once_for_all_products() -> None:
    graph = Graph()
    x = graph.embed(Matrix("rows", WIDTH, WIDTH))
    for name in NAMES:
        product(graph, x, name)
    assert [op for op, _ in lowered(graph)].count(Op.QUANTISE) == 1


def test_products_of_one_input_run_without_meeting_between_them() -> None:
    graph = Graph()
    x = graph.embed(Matrix("rows", WIDTH, WIDTH))
    for name in NAMES:
        product(graph, x, name)
    assert [meets for op, meets in lowered(graph) if op is Op.MATMUL] == [True, False, False, False]


def test_angles_are_made_once_a_rotation() -> None:
    graph, rotation = Graph(), Rotation((1.0,) * 16, 1.0, True)
    x = graph.embed(Matrix("rows", WIDTH, WIDTH))
    for name in NAMES:
        graph.rope(product(graph, x, name), 2, Rotation((1.0,) * 16, 1.0, True) if name == "k" else rotation)
    assert [op for op, _ in lowered(graph)].count(Op.ROPE_TABLE) == 1


def test_a_tensor_that_turned_is_made_integers_anew() -> None:
    """A rotation changes its tensor in place; integers made of it before no longer stand for it."""
    graph = Graph()
    x = graph.embed(Matrix("rows", WIDTH, WIDTH))
    product(graph, x, "q")
    product(graph, graph.rope(x, 2, Rotation((1.0,) * 16, 1.0, True)), "k")
    operations = [op for op, _ in lowered(graph)]
    assert operations.count(Op.QUANTISE) == 2
