"""docs/crd.md: the fields of a DecodePool for people, from the schema that the API server has."""

from __future__ import annotations

import json

from decodepool_sizing.spec_fields import RULES

from decodepool_operator.definition.structural import Schema, fields

INTRODUCTION = """\
<!-- Generated from sizing/decodepool_sizing by `make golden`. Do not edit. -->
# DecodePool

`decodepool.dev/v1alpha1`, namespaced, short name `dpool`. The smallest pool has a model and a context; `examples/` has
whole ones. A field that is not listed here is refused. Amounts of memory are bytes, or texts such as `80Gi`.

"""
SCALE = """
## Scaling

`kubectl scale decodepool NAME --replicas 3` sets `spec.replicas` through the scale subresource, as an HPA and KEDA do;
`status.selector` selects the worker pods for them.
"""


def page(schema: Schema) -> str:
    """Return the page."""
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    named = "".join(f"- {rule['message']}\n" for rule in schema[RULES])
    return (
        f"{INTRODUCTION}{named}\n## spec\n\n{_table(spec, with_rules=True)}{SCALE}\n"
        f"## status\n\nWritten by the operator; every field may be absent.\n\n{_table(status, with_rules=False)}"
    )


def _table(schema: Schema, with_rules: bool) -> str:
    header = (
        "| field | type | default | |\n|---|---|---|---|\n" if with_rules else "| field | type | |\n|---|---|---|\n"
    )
    required = _required(schema)
    return header + "".join(_row(path, field, path in required, with_rules) for path, field in fields(schema).items())


def _row(path: str, field: Schema, required: bool, with_rules: bool) -> str:
    kind, told = _kind(field), _told(field)
    if not with_rules:
        return f"| `{path}` | {kind} | {told} |\n"
    default = "required" if required else _default(field)
    return f"| `{path}` | {kind} | {default} | {told} |\n"


def _required(schema: Schema, path: str = "") -> set[str]:
    here = f"{path}." if path else ""
    found = {f"{here}{name}" for name in schema.get("required", [])}
    for name, child in schema.get("properties", {}).items():
        found |= _required(child, f"{here}{name}")
    return found | (_required(schema["items"], f"{path}[]") if "items" in schema else set())


def _default(field: Schema) -> str:
    default = field.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _kind(field: Schema) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "amount"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field["type"] == "array":
        return f"list of {_kind(field['items'])}"
    if field["type"] == "object" and "properties" not in field:
        return "map" if "additionalProperties" in field else "as Kubernetes has it"
    return f"{field['type']}{_bounds(field)}"


def _bounds(field: Schema) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    return f", {least} to {most}" if least is not None and most is not None else ""


def _told(field: Schema) -> str:
    messages = [rule["message"] for rule in field.get(RULES, [])]
    sentences = [f"{message[0].upper()}{message[1:]}." for message in messages]
    return " ".join([field.get("description", ""), *sentences]).strip()
