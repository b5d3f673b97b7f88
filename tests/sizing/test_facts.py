"""A model's facts: small, the same after a journey as JSON, and a word for every fault of a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from decodepool_sizing.capacity import Demand, plan_capacity
from decodepool_sizing.devices import gpu_memory
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.facts import MAX_JSON_BYTES, FactsError, ModelFacts, fault_reason, read_facts
from decodepool_sizing.matrix_types import MATRICES, MOST_MIXTURES, UNIFORM, StepTypes
from decodepool_sizing.readers import file_reader
from decodepool_sizing.shape import ModelShape, read_shape

from tests.sizing.gguf_bytes import BytesReader, Tensor, tiny
from tests.sizing.models import MODELS, header_of


def facts_of(shape: ModelShape) -> ModelFacts:
    known = read_facts(BytesReader(tiny()))
    return dataclasses.replace(known, shape=shape, weight_bytes={"cpu": 1 << 40, "cuda": 1 << 41})


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_published_shape_survives_the_journey_within_a_containers_last_words(name: str) -> None:
    architecture, keys = MODELS[name][:2]
    known = facts_of(read_shape(header_of(architecture, keys)))
    text = known.to_json()
    assert len(text.encode()) <= MAX_JSON_BYTES
    assert ModelFacts.from_json(text) == known


def test_a_plan_from_facts_is_the_plan_from_the_file() -> None:
    known = read_facts(BytesReader(tiny()))
    again = ModelFacts.from_json(known.to_json())
    plans = [plan_capacity(Demand(f.shape, f.weight_bytes["cuda"], 128), gpu_memory(4 << 30)) for f in (known, again)]
    assert plans[0] == plans[1]


def test_types_that_blocks_mix_travel_with_the_facts_and_as_many_as_are_told_apart_too() -> None:
    known = read_facts(BytesReader(tiny()))
    assert known.types == StepTypes((("F32",) * len(MATRICES),), "F32")
    assert ModelFacts.from_json(known.to_json()) == known
    types = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0")
    mixtures = tuple(tuple(types[(i + j) % 8] for j in range(len(MATRICES))) for i in range(MOST_MIXTURES))
    irregular = dataclasses.replace(known, types=StepTypes(mixtures, "Q6_K", tuple(i % 16 for i in range(126))))
    assert len(irregular.to_json()) <= MAX_JSON_BYTES
    assert ModelFacts.from_json(irregular.to_json()) == irregular


def test_types_are_left_out_where_there_is_no_room_for_them() -> None:
    known = read_facts(BytesReader(tiny()))
    irregular = dataclasses.replace(known, types=StepTypes((("Q4_K",) * len(MATRICES),), "Q6_K", (0,) * 4096))
    text = irregular.to_json()
    assert len(text) <= MAX_JSON_BYTES
    assert ModelFacts.from_json(text) == dataclasses.replace(known, types=UNIFORM)


def test_facts_kept_before_types_were_are_read_as_of_one_type() -> None:
    known = read_facts(BytesReader(tiny()))
    written = {key: value for key, value in json.loads(known.to_json()).items() if key != "types"}
    assert ModelFacts.from_json(json.dumps(written)) == dataclasses.replace(known, types=UNIFORM)


def test_the_digest_is_the_files_where_it_is_known_and_else_follows_the_header() -> None:
    given = "0" * 64
    assert read_facts(BytesReader(tiny()), given).digest == f"sha256:{given}"
    digests = {read_facts(BytesReader(tiny(change))).digest for change in ({}, {"general.name": "other"})}
    assert len(digests) == 2


def test_what_an_engine_refuses_travels_with_the_facts() -> None:
    known = read_facts(BytesReader(tiny({"llama.rope.dimension_count": 8})))
    assert known.refusals["cpu"][0].startswith("rope turns 8 of 16")
    assert ModelFacts.from_json(known.to_json()).refusals == known.refusals


WRONG = {
    "no JSON": "Killed",
    "no object": "[]",
    "empty": "{}",
    "another schema": json.dumps({"schema": 2}),
    "deep": "[" * 5000,
    "a layer that is none": None,
    "too many layers": None,
    "an unknown field": None,
    "types of no block": None,
    "types of a block that has other matrices": None,
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_text_that_is_no_facts_is_refused(name: str) -> None:
    text = WRONG[name]
    if text is None:
        written = json.loads(read_facts(BytesReader(tiny())).to_json())
        changes: dict[str, dict[str, object]] = {
            "a layer that is none": {"layerRuns": [[7, 2]]},
            "too many layers": {"layerRuns": [[0, 1 << 40]]},
            "an unknown field": {"layerKinds": [{"head_count": "many"}]},
            "types of no block": {"types": {"mixtures": [], "output": "Q8_0"}},
            "types of a block that has other matrices": {"types": {"mixtures": [["Q8_0"]], "output": "Q8_0"}},
        }
        text = json.dumps({**written, **changes[name]})
    with pytest.raises(FactsError):
        ModelFacts.from_json(text)


def test_a_model_too_irregular_to_keep_is_refused_by_name() -> None:
    known = read_facts(BytesReader(tiny()))
    layers = tuple(dataclasses.replace(known.shape.layers[0], feed_forward_length=n + 1) for n in range(100))
    irregular = dataclasses.replace(known, shape=dataclasses.replace(known.shape, layers=layers))
    with pytest.raises(BadModelFile, match="100 kinds of layers"):
        irregular.to_json()


FAULTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "NotGGUF"),
    "a web page": (b"<!DOCTYPE html><html>", "NotGGUF"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "NotGGUF"),
    "another magic": (tiny(magic=b"GGML"), "NotGGUF"),
    "a version of its own": (tiny(version=9), "BadModelFile"),
    "cut in the header": (tiny()[:300], "Truncated"),
    "cut by a byte": (tiny()[:-65], "Truncated"),
    "one part of several": (tiny({"split.count": 3}), "SplitModel"),
    "an unknown architecture": (tiny({"general.architecture": "mystery"}), "UnsupportedArchitecture"),
    "no architecture": (tiny({"general.architecture": None}), "BadModelFile"),
    "no width": (tiny({"llama.embedding_length": None}), "BadModelFile"),
    "no embedding": (tiny(edit={"token_embd.weight": None}), "BadModelFile"),
    "a dimension of zero": (tiny(added=[Tensor("x", (0, 4))]), "BadModelFile"),
    "a type that is none": (tiny(added=[Tensor("x", (32,), kind=99)]), "BadModelFile"),
}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_fault_of_a_file_has_one_word_and_one_line(name: str) -> None:
    data, reason = FAULTS[name]
    with pytest.raises(BadModelFile) as caught:
        read_facts(BytesReader(data))
    assert fault_reason(caught.value) == reason
    assert "\n" not in str(caught.value)


def test_faults_of_the_place_have_words_too(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "absent.gguf", "NotFound"), (tmp_path, "NotAFile")):
        with pytest.raises(BadModelFile) as caught, file_reader(path):
            pass
        assert fault_reason(caught.value) == reason


SERVERS = {
    "the server answers 404 Not Found": "NotFound",
    "the server answers 401 Unauthorized": "Unauthorized",
    "the server answers 403 Forbidden": "Unauthorized",
    "the server answers 500 Internal Server Error": "ServerRefused",
    "cannot be fetched: Connection refused": "Unreachable",
    "the server ignores Range requests, so the header alone cannot be read: put the file": "RangesUnsupported",
    "the server's Content-Range is '', which does not tell the file's size": "RangesUnsupported",
    "the file changed while its header was read: 1 bytes, None, then 2 bytes, None": "FileChanged",
}


@pytest.mark.parametrize("text", sorted(SERVERS))
def test_faults_of_a_server_have_words(text: str) -> None:
    assert fault_reason(BadModelFile(text)) == SERVERS[text]
