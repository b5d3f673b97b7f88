"""The CustomResourceDefinition is the models', whole, and in the form that Kubernetes takes.

A real API server judges it in tests/chart.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from decodepool_operator.definition.crd import COLUMNS, crd, missing_fields, outputs, schema
from decodepool_operator.definition.structural import fields, structural
from pydantic import BaseModel, Field

ROOT = Path(__file__).parents[2]
OUTPUTS = outputs(ROOT)


@pytest.mark.parametrize("path", OUTPUTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_generated_is_what_is_kept(path: Path) -> None:
    assert path.read_text() == OUTPUTS[path], "run `make golden` and look at the difference"


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a schema."""
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from nodes(child)
    elif isinstance(node, list):
        for child in node:
            yield from nodes(child)


@pytest.mark.parametrize("word", ["$ref", "$defs", "title", "const", "oneOf", "allOf"])
def test_nothing_is_left_that_a_structural_schema_may_not_have(word: str) -> None:
    assert [node for node in nodes(schema()) if word in node and not isinstance(node[word], dict)] == []


def test_null_is_no_value_of_anything() -> None:
    assert [node for node in nodes(schema()) if node.get("type") == "null"] == []


def test_every_pattern_is_told_by_a_message_for_people() -> None:
    assert [path for path, field in fields(schema()).items() if "pattern" in field] == []


def test_defaults_hold_what_is_below_them() -> None:
    """The API server runs rules on a default as it is written."""
    spec = schema()["properties"]["spec"]["properties"]
    assert spec["accelerator"]["default"] == {"type": "nvidia", "count": 1}
    assert spec["drain"]["default"] == {"timeoutSeconds": 300}


class Small(BaseModel):
    count: int = Field(default=1, ge=1)
    label: str | None = Field(default=None, pattern="^a$")


def test_a_field_that_may_be_absent_keeps_its_rules_and_a_required_one_stays() -> None:
    whole = structural({"type": "object", "required": ["a"], "properties": {"a": Small.model_json_schema()}})
    inner = whole["properties"]["a"]["properties"]
    assert whole["required"] == ["a"]
    assert inner["count"] == {"type": "integer", "default": 1, "minimum": 1, "format": "int64"}
    assert inner["label"] == {"type": "string", "pattern": "^a$"}


def test_columns_show_fields_that_there_are() -> None:
    known = fields(schema())
    for name, _, path, _, _ in COLUMNS:
        plain = re.sub(r"\[\?.*?\]", "[]", path).removeprefix(".")
        assert plain in known or plain.startswith("metadata."), name


def test_scaling_reads_fields_that_there_are() -> None:
    scale = crd()["spec"]["versions"][0]["subresources"]["scale"]
    assert {path.removeprefix(".") for path in scale.values()} <= set(fields(schema()))


def test_every_field_of_the_status_is_described() -> None:
    status = fields(schema()["properties"]["status"])
    assert [path for path, field in status.items() if not field.get("description")] == []


def without(path: str) -> dict[str, Any]:
    """An older definition: this one, less a field."""
    older = copy.deepcopy(crd())
    place = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    *parents, last = path.split(".")
    for name in parents:
        place = place["properties"][name]
    del place["properties"][last]
    return older


def test_the_present_definition_misses_nothing() -> None:
    assert missing_fields(crd()) == []


@pytest.mark.parametrize("path", ["spec.suspend", "spec.model.cache.size", "status.plan.reserveBytes"])
def test_an_older_definition_is_found_by_what_it_misses(path: str) -> None:
    assert missing_fields(without(path)) == [path]


def test_a_definition_without_this_version_misses_everything() -> None:
    other = crd()
    other["spec"]["versions"][0]["name"] = "v1"
    assert set(missing_fields(other)) == set(fields(schema()))
    assert missing_fields({}) == missing_fields(other)
