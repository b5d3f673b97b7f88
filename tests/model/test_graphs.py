"""Each architecture's step: the tensors it uses, in which order it uses them, and widths that do not go together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from decodepool_kernels.graph import (
    Attention,
    Embed,
    Graph,
    Logits,
    MatMul,
    Matrix,
    Norm,
    Rope,
    Rotation,
    SwiGlu,
    Tensor,
    Vector,
)
from decodepool_sizing.expected import DENSE_PARTS, expected_tensors
from decodepool_sizing.header import Header
from decodepool_sizing.shape import read_shape
from decodepool_worker.model.registry import ARCHITECTURES, model_graph

from tests.sizing.test_expected import SOUND, header_with

ROPE_FREQS = "rope_freqs.weight"


def header_of(name: str) -> Header:
    architecture, changes = SOUND[name]
    return header_with(architecture, **changes)


def graph_of(name: str) -> Graph:
    header = header_of(name)
    factors = [1.0] * 32 if ROPE_FREQS in header.by_name else None
    return model_graph(read_shape(header), header, factors)


def weights_of(graph: Graph) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every weight that an operation names, with the dims it takes it for."""
    for operation in graph.operations:
        for part in vars(operation).values():
            if isinstance(part, Matrix):
                yield part.name, (part.inputs, part.outputs)
            if isinstance(part, Vector):
                yield part.name, (part.length,)


def test_every_architecture_that_is_planned_can_be_built() -> None:
    assert set(ARCHITECTURES) == set(DENSE_PARTS)


@pytest.mark.parametrize("name", SOUND)
def test_a_step_uses_every_tensor_of_the_file_as_it_is(name: str) -> None:
    """All but the frequency factors, which have become the rotation."""
    header = header_of(name)
    in_file = {tensor.name: tensor.dims for tensor in header.tensors if tensor.name != ROPE_FREQS}
    assert dict(weights_of(graph_of(name))) == in_file


@pytest.mark.parametrize("name", SOUND)
def test_a_step_uses_nothing_that_the_planner_does_not_know(name: str) -> None:
    known = {tensor.name: tensor.dims for tensor in expected_tensors(read_shape(header_of(name)))}
    assert {item: dims for item, dims in weights_of(graph_of(name)) if known.get(item) != dims} == {}


@pytest.mark.parametrize("name", SOUND)
def test_only_a_tied_embedding_is_used_twice(name: str) -> None:
    names = [item for item, _ in weights_of(graph_of(name))]
    twice = {item for item in names if names.count(item) > 1}
    assert twice == ({"token_embd.weight"} if "output.weight" not in header_of(name).by_name else set())


@pytest.mark.parametrize(("name", "interleaved"), [("llama", True), ("qwen2", False), ("qwen3", False)])
def test_pairs_lie_as_the_converter_left_them(name: str, interleaved: bool) -> None:
    found = {op.rotation.interleaved for op in graph_of(name).operations if isinstance(op, Rope)}
    assert found == {interleaved}


@pytest.mark.parametrize("name", SOUND)
def test_a_step_begins_with_tokens_attends_once_a_layer_and_ends_in_logits(name: str) -> None:
    operations = graph_of(name).operations
    assert isinstance(operations[0], Embed)
    assert isinstance(operations[-1], Logits)
    attentions = [op for op in operations if isinstance(op, Attention)]
    assert [op.layer for op in attentions] == [0, 1]
    assert {(op.heads, op.kv_heads, op.scale) for op in attentions} == {(4, 2, 16**-0.5)}
    assert sum(isinstance(op, SwiGlu) for op in operations) == 2


@pytest.mark.parametrize("name", SOUND)
def test_keys_and_queries_turn_after_their_norm_and_values_never(name: str) -> None:
    graph = graph_of(name)
    turned = {op.x for op in graph.operations if isinstance(op, Rope)}
    normed = {op.out: op.heads for op in graph.operations if isinstance(op, Norm) and "_norm" in op.weight.name}
    for op in graph.operations:
        if isinstance(op, Attention):
            assert op.q in turned
            assert op.k in turned
            assert op.v not in turned
            assert (normed.get(op.q), normed.get(op.k)) == ((4, 2) if name == "qwen3" else (None, None))


def test_attention_scale_is_the_files_own_where_it_has_one() -> None:
    header = header_with(metadata={"llama.attention.scale": 0.0625})
    graph = model_graph(read_shape(header), header, None)
    assert {op.scale for op in graph.operations if isinstance(op, Attention)} == {0.0625}


def test_biases_are_added_to_the_products_they_are_named_after() -> None:
    products = [op for op in graph_of("llama with biases").operations if isinstance(op, MatMul)]
    named = {op.matrix.name: op.bias.name for op in products if op.bias is not None}
    assert named == {
        **{f"blk.{i}.attn_{part}.weight": f"blk.{i}.attn_{part}.bias" for i in range(2) for part in "qkv"},
        "blk.1.ffn_down.weight": "blk.1.ffn_down.bias",
    }


def attend(g: Graph, queries: int, keys: int, values: int, heads: int, kv_heads: int, **switches: Any) -> None:
    q, k, v = (g.tensor(width) for width in (queries, keys, values))
    g.attention(q, k, v, layer=0, heads=heads, kv_heads=kv_heads, scale=1.0, **switches)


TURN = Rotation((1.0,) * 8, 1.0, True)
MISFITS: dict[str, tuple[Callable[[Graph], object], str]] = {
    "a product": (lambda g: g.matmul(g.tensor(32), Matrix("m", 64, 16)), "m takes 64 inputs, not 32"),
    "a bias": (
        lambda g: g.matmul(g.tensor(64), Matrix("m", 64, 16), Vector("b", 17)),
        "b adds 17 to 16 outputs",
    ),
    "a norm": (lambda g: g.norm(g.tensor(64), Vector("w", 32), 1e-5), "w norms 32 x 1 heads, not 64"),
    "a norm of heads": (lambda g: g.norm(g.tensor(64), Vector("w", 64), 1e-5, 2), "w norms 64 x 2 heads, not 64"),
    "a sum": (lambda g: g.tensor(64) + g.tensor(32), "a sum of widths 64 and 32"),
    "a gate": (lambda g: g.swiglu(g.tensor(64), g.tensor(32)), "a gate of 64 for 32"),
    "a turn of more than a head": (lambda g: g.rope(g.tensor(24), 3, TURN), "16 of 24 / 3 dimensions turn"),
    "heads that do not divide": (lambda g: g.rope(g.tensor(50), 3, TURN), "16 of 50 / 3 dimensions turn"),
    "kv heads": (lambda g: attend(g, 96, 64, 64, 6, 4), "6 query heads on 4 kv heads"),
    "keys of another width": (lambda g: attend(g, 64, 64, 64, 4, 2), "queries 64 / 4, keys 64 / 2, values 64 / 2"),
    "values of another width": (lambda g: attend(g, 64, 32, 16, 4, 2), "queries 64 / 4, keys 32 / 2, values 16 / 2"),
    "sinks": (lambda g: attend(g, 64, 32, 32, 4, 2, sinks=Vector("s", 2)), "s has 2 sinks for 4 query heads"),
    "a window of nothing": (lambda g: attend(g, 64, 32, 32, 4, 2, window=0), "a window of 0 tokens"),
    "a window past every position": (
        lambda g: attend(g, 64, 32, 32, 4, 2, window=1 << 31),
        "a window of 2147483648 tokens",
    ),
    "a soft cap of nothing": (lambda g: attend(g, 64, 32, 32, 4, 2, soft_cap=0.0), "a soft cap of 0.0"),
    "a soft cap that is none": (lambda g: attend(g, 64, 32, 32, 4, 2, soft_cap=math.nan), "a soft cap of nan"),
    "the last norm": (
        lambda g: g.logits(g.tensor(64), Vector("w", 32), 1e-5, Matrix("m", 64, 9)),
        "w norms 32, not 64",
    ),
    "the last product": (
        lambda g: g.logits(g.tensor(64), Vector("w", 64), 1e-5, Matrix("m", 32, 9)),
        "m takes 32 inputs, not 64",
    ),
}


@pytest.mark.parametrize(("record", "text"), MISFITS.values(), ids=list(MISFITS))
def test_widths_that_do_not_go_together_are_named(record: Callable[[Graph], Tensor], text: str) -> None:
    graph = Graph()
    with pytest.raises(ValueError, match=f"^{text}$"):
        record(graph)
    assert graph.operations == []
