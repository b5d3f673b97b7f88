"""How weights and activations are kept for products, and which activations serve which weights. No GPU needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from decodepool_kernels.cuda.formats import repacked_kind
from decodepool_kernels.cuda.lower import Lowering
from decodepool_kernels.cuda.packing import quant_kind
from decodepool_kernels.cuda.pages import LayerPages
from decodepool_kernels.cuda.records import Columns, DeviceMatrix, LogitsRows, Scratch, Weights
from decodepool_kernels.graph import Graph, Matrix
from decodepool_sizing.layouts import QUANT_LAYOUTS
from decodepool_sizing.tensor_types import TensorType
from decodepool_worker.weights.formats import FORMATS

from tests.kernels.matrices import CODE_COUNTS, FACTORS

WIDTH = 512


class NoPages:
    """Of a graph without attention."""

    layers: tuple[LayerPages, ...] = ()
    kv_bits = 16


@pytest.mark.parametrize("name", FACTORS)
def test_a_group_is_one_chain_where_every_code_times_its_factor_is_an_f16(name: str) -> None:
    layout, codes = QUANT_LAYOUTS[name], np.arange(CODE_COUNTS.get(name, 1 << QUANT_LAYOUTS[name].code_bits))
    weights = (codes - FORMATS[name].zero) * np.arange(*FACTORS[name])[:, None]
    assert quant_kind(layout).has_group_chains == bool((weights.astype(np.float16) == weights).all())


@pytest.mark.parametrize("name", [name for name in FACTORS if quant_kind(QUANT_LAYOUTS[name]).has_group_chains])
def test_codes_of_such_types_begin_at_0_where_they_have_minima(name: str) -> None:
    assert QUANT_LAYOUTS[name].has_minimum == (FORMATS[name].zero == 0)


@pytest.mark.parametrize(
    ("names", "made"),
    [
        (("Q4_K", "Q4_K", "Q6_K"), 1),
        (("Q6_K", "Q5_K"), 1),
        (("Q8_0", "Q4_1"), 1),
        (("F16", "Q2_K", "Q3_K"), 1),
        (("Q4_1", "Q4_K"), 2),
        (("Q4_K", "BF16"), 2),
    ],
    ids=str,
)
def test_a_tensor_is_quantised_once_for_all_kinds_that_can_take_the_same(names: Sequence[str], made: int) -> None:
    graph = Graph()
    x = graph.embed(Matrix(names[0], WIDTH, WIDTH))
    for name in names:
        graph.matmul(x, Matrix(name, WIDTH, WIDTH))
    matrices = {name: DeviceMatrix(repacked_kind(TensorType[name]), WIDTH, WIDTH, 0, 0, 0) for name in names}
    pages: Any = NoPages()
    weights, logits, scratch = Weights(matrices, {}, 0), LogitsRows(0, 0), Scratch(0, 0)
    lowering = Lowering(weights, pages, logits, scratch, 64, Columns(64), 0, 0, lambda _: 0, fused=True)
    kernels = [record.kernel for record in lowering.lower(graph).records]
    assert kernels.count("quantise") == made
