"""The tensors that a model must have: held to its own sizes, not only to the file."""

from __future__ import annotations

from typing import Any

import pytest
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.expected import DENSE_PARTS, check_tensors, expected_tensors
from decodepool_sizing.header import Header, read_header
from decodepool_sizing.loaded_tensors import loaded_tensors, weight_bytes
from decodepool_sizing.shape import read_shape
from decodepool_sizing.support import RUN_ARCHITECTURES, RUN_WEIGHT_TYPES, model_refusals
from decodepool_sizing.tensor_types import TensorType

from tests.sizing.gguf_bytes import METADATA, BytesReader, Tensor, tiny
from tests.sizing.models import MODELS, header_of


def header_with(architecture: str = "llama", metadata: dict[str, Any] | None = None, **changes: Any) -> Header:
    renamed = {key.replace("llama.", f"{architecture}."): value for key, value in METADATA.items()}
    gone = dict.fromkeys(METADATA) if architecture != "llama" else {}
    keys = gone | renamed | {"general.architecture": architecture} | (metadata or {})
    return read_header(BytesReader(tiny(keys, **changes)))


def check(header: Header) -> None:
    check_tensors(read_shape(header), header)


QWEN2_BIASES = [
    Tensor(f"blk.{i}.attn_{part}.bias", (size,)) for i in range(2) for part, size in (("q", 64), ("k", 32), ("v", 32))
]
QWEN3_NORMS = [Tensor(f"blk.{i}.attn_{part}_norm.weight", (16,)) for i in range(2) for part in "qk"]
SOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"edit": {"output.weight": None}}),
    "llama with biases": ("llama", {"added": [*QWEN2_BIASES, Tensor("blk.1.ffn_down.bias", (64,))]}),
    "llama 3 with frequency factors": ("llama", {"added": [Tensor("rope_freqs.weight", (8,))]}),
    "qwen2": ("qwen2", {"added": QWEN2_BIASES}),
    "qwen3": ("qwen3", {"added": QWEN3_NORMS}),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_model_is_run(name: str) -> None:
    architecture, changes = SOUND[name]
    header = header_with(architecture, **changes)
    check(header)
    assert model_refusals(header)[1] == []


FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a matrix missing": (
        "llama",
        {"edit": {"blk.1.attn_k.weight": None}},
        r"tensor blk\.1\.attn_k\.weight: missing, expected \[64, 32\]",
    ),
    "a matrix of another height": (
        "llama",
        {"edit": {"blk.0.attn_v.weight": {"dims": (64, 64)}}},
        r"tensor blk\.0\.attn_v\.weight: expected \[64, 32\], found \[64, 64\]",
    ),
    "a matrix turned around": (
        "llama",
        {"edit": {"blk.0.ffn_down.weight": {"dims": (64, 96)}}},
        r"tensor blk\.0\.ffn_down\.weight: expected \[96, 64\], found \[64, 96\]",
    ),
    "a norm of another length": (
        "llama",
        {"edit": {"output_norm.weight": {"dims": (32,)}}},
        r"tensor output_norm\.weight: expected \[64\], found \[32\]",
    ),
    "an output of fewer rows": (
        "llama",
        {"edit": {"output.weight": {"dims": (64, 32)}}},
        r"tensor output\.weight: expected \[64, 40\], found \[64, 32\]",
    ),
    "a bias of another length": (
        "llama",
        {"added": [Tensor("blk.0.attn_q.bias", (32,))]},
        r"tensor blk\.0\.attn_q\.bias: expected \[64\], found \[32\]",
    ),
    "a layer too many": (
        "llama",
        {"added": [Tensor("blk.2.attn_norm.weight", (64,))]},
        r"tensor blk\.2\.attn_norm\.weight: not a part of llama as the engine runs it",
    ),
    "something it would ignore": (
        "llama",
        {"added": [Tensor("blk.0.attn_sinks.weight", (4,))]},
        r"tensor blk\.0\.attn_sinks\.weight: not a part of llama",
    ),
    "frequency factors of another length": (
        "llama",
        {"added": [Tensor("rope_freqs.weight", (16,))]},
        r"tensor rope_freqs\.weight: expected \[8\], found \[16\]",
    ),
    "qwen2 without a bias": ("qwen2", {"added": QWEN2_BIASES[1:]}, r"tensor blk\.0\.attn_q\.bias: missing"),
    "qwen3 without a norm": ("qwen3", {"added": QWEN3_NORMS[1:]}, r"tensor blk\.0\.attn_q_norm\.weight: missing"),
    "qwen3 with a bias": ("qwen3", {"added": [*QWEN3_NORMS, *QWEN2_BIASES]}, "not a part of qwen3"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_tensor_that_does_not_fit_the_model_is_refused_by_name(name: str) -> None:
    architecture, changes, text = FAULTS[name]
    header = header_with(architecture, **changes)
    with pytest.raises(BadModelFile, match=text):
        check(header)
    assert len(model_refusals(header)[1]) == 1


def test_the_tables_agree_on_what_is_run() -> None:
    assert set(DENSE_PARTS) == RUN_ARCHITECTURES
    assert {kind.name for kind in RUN_WEIGHT_TYPES} >= {"F32", "F16", "BF16", "Q8_0", "Q4_1", "Q6_K", "MXFP4"}


@pytest.mark.parametrize("name", [name for name, (kind, _) in MODELS.items() if kind not in RUN_ARCHITECTURES])
def test_an_architecture_not_run_yet_is_refused_in_words(name: str) -> None:
    architecture, keys = MODELS[name]
    shape, refusals = model_refusals(header_of(architecture, keys))
    assert shape is not None
    assert refusals[0] == (
        f"architecture {architecture}: the engine does not run this yet; it runs llama, qwen2, qwen3"
    )


def test_a_mixtral_is_a_llama_that_is_not_run_yet() -> None:
    shape, refusals = model_refusals(header_of(*MODELS["Mixtral-8x7B"]))
    assert shape is not None
    assert shape.experts is not None
    assert refusals == ["8 experts in a llama: the engine does not run this yet"]


def test_rope_over_part_of_a_head_is_not_run_yet() -> None:
    refusals = model_refusals(header_with(metadata={"llama.rope.dimension_count": 8}))[1]
    assert refusals == ["rope turns 8 of 16 dimensions: the engine does not run this yet"]


def test_a_type_not_run_yet_names_its_first_tensor() -> None:
    kinds = {"kind": int(TensorType.F64), "data": bytes(8 * 64 * 96)}
    header = header_with(edit={"blk.0.ffn_up.weight": kinds, "blk.1.ffn_up.weight": kinds})
    assert model_refusals(header)[1] == [
        "tensor blk.0.ffn_up.weight and 1 more: type F64: the engine does not run this yet"
    ]


def test_an_unknown_architecture_is_a_refusal_without_a_shape() -> None:
    shape, refusals = model_refusals(header_with(metadata={"general.architecture": "mamba"}))
    assert shape is None
    assert len(refusals) == 1


def test_prediction_blocks_are_neither_checked_nor_loaded() -> None:
    header = header_with(
        metadata={"llama.block_count": 3, "llama.nextn_predict_layers": 1},
        added=[Tensor("blk.2.nextn.eh_proj.weight", (128, 64))],
    )
    check(header)
    shape = read_shape(header)
    assert [t.name for t in header.tensors if t not in loaded_tensors(shape, header.tensors)] == [
        "blk.2.nextn.eh_proj.weight"
    ]
    assert weight_bytes(shape, header.tensors) == weight_bytes(shape, header.tensors[:-1])


def test_expected_tensors_cover_the_file() -> None:
    header = header_with()
    names = {tensor.name for tensor in expected_tensors(read_shape(header))}
    assert set(header.by_name) <= names
