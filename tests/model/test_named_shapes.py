"""Shapes known by name are models that the engine would run from a file."""

from __future__ import annotations

from collections import Counter

import pytest
from decodepool_sizing.errors import BadDemand
from decodepool_sizing.loaded_tensors import weight_bytes
from decodepool_sizing.support import model_refusals
from decodepool_worker.model.named_shapes import SHAPES, named_header
from decodepool_worker.model.registry import model_graph


@pytest.mark.parametrize("weights", ["Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "F16", "MXFP4"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_named_shape_runs(name: str, weights: str) -> None:
    header = named_header(name, weights)
    shape, refusals = model_refusals(header)
    assert shape is not None
    assert not refusals
    assert model_graph(shape, header, None).operations
    assert weight_bytes(shape, header.tensors) > 0


def test_llama_3_8b_has_the_parameters_and_bytes_of_its_files() -> None:
    header = named_header("llama-3-8b", "Q8_0")
    assert sum(tensor.dims[0] * (tensor.dims[1] if len(tensor.dims) > 1 else 1) for tensor in header.tensors) == (
        8_030_261_248
    )
    assert sum(tensor.size_bytes for tensor in header.tensors) == pytest.approx(8.53e9, rel=0.001)


def test_q4_k_m_is_the_mix_of_llama_cpp() -> None:
    """Q6_K for the output, and for values and down of blocks 0-3, 6, 9, ... 27, and 28-31."""
    header = named_header("llama-3-8b", "Q4_K_M")
    kinds = Counter(tensor.type.name for tensor in header.tensors)
    assert kinds == {"Q4_K": 193, "Q6_K": 33, "F32": 65}
    fine = [tensor.name for tensor in header.tensors if tensor.type.name == "Q6_K" and "ffn_down" in tensor.name]
    assert [int(name.split(".")[1]) for name in fine] == [*range(4), *range(6, 28, 3), *range(28, 32)]


@pytest.mark.parametrize(
    ("name", "weights", "fault"),
    [
        ("llama-3-9b", "Q8_0", "no shape is called 'llama-3-9b'; there are llama-3-8b"),
        ("llama-3-8b", "Q9_0", "no weights are called 'Q9_0'; there are F32, .*Q4_K_M"),
        ("llama-3-8b", "IQ1_S", "no weights are called 'IQ1_S'"),
    ],
)
def test_names_that_are_not_known_are_told_with_those_that_are(name: str, weights: str, fault: str) -> None:
    with pytest.raises(BadDemand, match=fault):
        named_header(name, weights)
