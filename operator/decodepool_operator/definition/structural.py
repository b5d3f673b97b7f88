"""From pydantic's JSON schema to a structural schema, the subset of OpenAPI v3 that Kubernetes takes for its resources.

References are written out, `null` is left away (an absent field is absent), a constant is an enum of one, and unknown
fields need no word: the API server refuses or drops what a structural schema does not name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

_DROPPED = frozenset({"title", "$defs"})
_RULES = "x-kubernetes-validations"


def structural(schema: Schema) -> Schema:
    """Return the structural form of a schema that pydantic made."""
    return _convert(schema, schema.get("$defs", {}))


def _convert(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    node = _without_null(_resolved(node, definitions))
    result = {key: _value(key, value, definitions) for key, value in node.items() if _is_kept(key, value, node)}
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if result.get("default") == {}:  # rules see a default as it is written, before what is below it is filled in
        result["default"] = {name: each["default"] for name, each in result["properties"].items() if "default" in each}
    if result.get("type") == "integer":
        result.setdefault("format", "int64")
    return result


def _resolved(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """What a reference leads to, under what is said beside it."""
    if "$ref" not in node:
        return node
    beside = {key: value for key, value in node.items() if key != "$ref"}
    return _resolved(definitions[node["$ref"].rpartition("/")[2]], definitions) | beside


def _without_null(node: Schema) -> Schema:
    """`anyOf` of one thing and null is that thing, with the rules of both."""
    kinds = [kind for kind in node.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return node
    outside = {key: value for key, value in node.items() if key != "anyOf"}
    merged: Schema = kinds[0] | outside
    if both := [*kinds[0].get(_RULES, []), *outside.get(_RULES, [])]:
        merged[_RULES] = both
    return merged


def _is_kept(key: str, value: Any, node: Schema) -> bool:
    if key == "additionalProperties":  # an object has properties or additionalProperties, never both
        return isinstance(value, dict)
    if key == "pattern":  # told by a rule, which has a message for people
        return not any(f"matches(r'{value}')" in rule["rule"] for rule in node.get(_RULES, []))
    return key not in _DROPPED and (key, value) != ("default", None)


def _value(key: str, value: Any, definitions: Mapping[str, Schema]) -> Any:
    if key == "properties":
        return {name: _property(each, definitions) for name, each in value.items()}
    if key in {"items", "additionalProperties"}:
        return _convert(value, definitions)
    return value


def _property(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """A property, where a reference that may be null is resolved only once null is gone."""
    slim = _without_null(node)
    return _convert(slim, definitions)


def fields(schema: Schema, path: str = "") -> dict[str, Schema]:
    """Return every field of a structural schema by its dotted path; `[]` stands for the items of a list."""
    found: dict[str, Schema] = {}
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        found[here] = child
        found |= fields(child, here)
    if items := schema.get("items"):
        found |= fields(items, f"{path}[]")
    return found
