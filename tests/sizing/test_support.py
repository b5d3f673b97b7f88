"""What the CUDA engine refuses of a model that it runs elsewhere."""

from __future__ import annotations

import pytest
from decodepool_sizing.kv import KVType
from decodepool_sizing.support import GPU_VOCABULARY, refused_capabilities, shape_refusals

from tests.sizing.models import llama_shape


@pytest.mark.parametrize(
    ("head_dimensions", "kv_type", "compute_capability", "refused"),
    [
        (256, KVType.F16, "8.9", True),
        (256, KVType.Q8_0, "8.9", False),
        (240, KVType.F16, "8.6", True),
        (224, KVType.F16, "8.6", False),
        (224, KVType.F16, "12.0", True),
        (208, KVType.F16, "12.0", False),
        (256, KVType.F16, "8.0", False),
        (256, KVType.F16, "9.0", False),
        (256, KVType.F16, "10.3", False),
        (256, KVType.F16, None, False),
        (512, KVType.F16, "9.0", True),
    ],
)
def test_heads_are_refused_where_attention_has_too_little_shared_memory(
    head_dimensions: int, kv_type: KVType, compute_capability: str | None, refused: bool
) -> None:
    lines = shape_refusals(llama_shape(head_dimensions), kv_type, compute_capability)
    assert [line.startswith(f"heads of {head_dimensions} dimensions as {kv_type}: ") for line in lines] == [
        True
    ] * refused


@pytest.mark.parametrize("compute_capability", [None, "9.0"])
def test_a_vocabulary_that_a_gpu_does_not_draw_from_is_refused(compute_capability: str | None) -> None:
    assert shape_refusals(llama_shape(64, GPU_VOCABULARY), KVType.F16, compute_capability) == []
    (line,) = shape_refusals(llama_shape(64, GPU_VOCABULARY + 1), KVType.F16, compute_capability)
    assert line == "a vocabulary of 262145: the engine draws tokens from up to 262144 on a GPU"


@pytest.mark.parametrize(
    ("head_dimensions", "kv_type", "refused"),
    [
        (128, KVType.F16, ()),
        (224, KVType.F16, ("12.0",)),
        (256, KVType.F16, ("8.6", "8.9", "12.0")),
        (256, KVType.Q8_0, ()),
    ],
)
def test_the_capabilities_that_do_not_run_a_model_are_those_of_gpus_that_are_known_and_not_too_old(
    head_dimensions: int, kv_type: KVType, refused: tuple[str, ...]
) -> None:
    assert refused_capabilities(llama_shape(head_dimensions), kv_type) == refused
