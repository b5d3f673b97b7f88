"""Which types a model's blocks mix, and what of that a plan keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decodepool_sizing.gpu_workspace import gpu_workspace_bytes
from decodepool_sizing.gpus import GPUS, cores_of
from decodepool_sizing.header import Header
from decodepool_sizing.matrix_types import (
    MATRICES,
    MOST_MIXTURES,
    UNIFORM,
    StepTypes,
    launches_of,
    share_rounding,
    step_types,
)
from decodepool_sizing.shape import read_shape
from decodepool_sizing.tensor_types import TensorType
from decodepool_worker.model.named_shapes import named_header


def types_of(header: Header) -> StepTypes:
    return step_types(read_shape(header), header.tensors)


def test_a_file_of_one_type_has_one_mixture() -> None:
    assert types_of(named_header("llama-3-8b", "Q4_0")) == StepTypes((("Q4_0",) * len(MATRICES),), "Q4_0")


def test_each_block_has_its_mixture_and_each_mixture_is_kept_once() -> None:
    header = named_header("llama-3-8b", "Q4_K_M")
    found, by_name = types_of(header), header.by_name
    assert len(found.mixtures) == 2
    for block in range(32):
        wanted = tuple(by_name[f"blk.{block}.{matrix}.weight"].type.name for matrix in MATRICES)
        assert found.of_block(block) == wanted
    assert found.output == by_name["output.weight"].type.name


def test_logits_of_tied_embeddings_have_the_embeddings_type() -> None:
    header = named_header("llama-3-8b", "Q8_0")
    tensors = tuple(tensor for tensor in header.tensors if tensor.name != "output.weight")
    tied = replace(header, tensors=tuple(
        replace(tensor, type=TensorType.Q6_K) if tensor.name == "token_embd.weight" else tensor for tensor in tensors
    ))  # fmt: skip
    assert types_of(tied).output == "Q6_K"


def test_blocks_with_other_matrices_are_planned_as_of_one_type() -> None:
    header = named_header("llama-3-8b", "Q4_K_M")
    assert step_types(read_shape(header), header.tensors[:-1]) == UNIFORM


def test_more_mixtures_than_are_told_apart_are_taken_for_the_last_of_those() -> None:
    header, kinds = named_header("llama-3-8b", "Q4_0"), (TensorType.Q4_0, TensorType.Q8_0)
    tensors = list(header.tensors)
    for at, tensor in enumerate(tensors):
        _, block, matrix, *_ = (*tensor.name.split("."), "", "")
        if block.isdigit() and matrix in MATRICES:
            bit = int(block) >> MATRICES.index(matrix) & 1  # 32 blocks have 32 mixtures
            tensors[at] = replace(tensor, type=kinds[bit])
    found = types_of(replace(header, tensors=tuple(tensors)))
    assert len(found.mixtures) == len(set(found.mixtures)) == MOST_MIXTURES
    assert [found.of_block(block) for block in range(MOST_MIXTURES)] == list(found.mixtures)
    assert found.of_block(31) == found.mixtures[-1]


@pytest.mark.parametrize(
    ("types", "launches"),
    [
        (("Q8_0", "Q8_0", "Q8_0"), [[0, 1, 2]]),
        (("Q8_0", "Q5_0", "IQ4_NL"), [[0, 1, 2]]),
        (("Q6_K", "Q4_K", "Q6_K"), [[1], [0, 2]]),
        (("Q8_0", "Q4_1", "Q4_K"), [[2], [1], [0]]),
        (("F16", "BF16", "F16"), [[0, 2], [1]]),
        (("F32", "Q8_0", "F32"), [[1], [0, 2]]),
        (("F32", "Q8_0", "Q4_1"), [[2], [1], [0]]),
    ],
    ids=str,
)
def test_matrices_that_are_kept_alike_share_a_launch_and_who_wants_sums_comes_first(
    types: tuple[str, ...], launches: list[list[int]]
) -> None:
    assert launches_of(types) == launches


@pytest.mark.parametrize(
    ("types", "shared"),
    [
        (("Q4_K", "Q4_K", "Q6_K"), True),
        (("Q8_0", "Q4_1", "Q4_1"), True),
        (("Q8_0", "Q6_K", "Q5_0"), True),
        (("Q4_K", "Q4_1", "Q8_0"), False),
        (("Q8_0", "Q8_0", "BF16"), False),
        (("Q8_0", "Q8_0", "F32"), False),
        (("F32", "F32", "F32"), False),
    ],
    ids=str,
)
def test_rows_quantised_once_serve_types_of_as_many_planes_and_of_the_same_sums_or_none(
    types: tuple[str, ...], shared: bool
) -> None:
    assert share_rounding(types) == shared


@pytest.mark.parametrize("compute_capability", sorted({gpu.compute_capability for gpu in GPUS}))
def test_types_that_no_engine_keeps_are_planned_as_the_usual_one(compute_capability: str) -> None:
    header = named_header("llama-3-8b", "Q8_0")
    tensors = tuple(
        replace(tensor, type=TensorType.IQ2_XS) if len(tensor.dims) > 1 else tensor for tensor in header.tensors
    )
    shape, (cores,) = read_shape(header), cores_of(compute_capability)
    planned = [
        gpu_workspace_bytes(shape, cores, 8192, 512, step_types(shape, each)) for each in (header.tensors, tensors)
    ]
    assert planned[0] == planned[1]
