"""The CustomResourceDefinition, from the models that also read manifests.

`python -m decodepool_operator.definition.crd` writes it where it is kept: crds/, the chart, and docs/crd.md. A test
fails where these differ from the models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from decodepool_sizing.manifest import API_VERSION, DecodePool, DecodePoolSpec
from decodepool_sizing.spec_fields import RULES
from decodepool_sizing.status import DecodePoolStatus

from decodepool_operator.api.kinds import GROUP, VERSION
from decodepool_operator.definition.page import page
from decodepool_operator.definition.structural import Schema, fields, structural

NAME = f"decodepools.{GROUP}"
OBJECT_NAME_LETTERS = 253
"""What Kubernetes allows anyway; said, since the API server weighs rules by the longest text they may meet."""
GENERATED = "# Generated from sizing/decodepool_sizing by `make golden`. Do not edit.\n"

COLUMNS = (
    ("Model", "string", ".status.model.name", 0, "The model that is served."),
    ("Sessions", "string", ".status.sessions.summary", 0, "Resident sessions, and how many the workers hold."),
    ("Ready", "string", ".status.workers", 0, "Workers that admit sessions, and how many are wanted."),
    ("Context", "integer", ".spec.contextTokens", 0, "Tokens that each session may hold."),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Since when the pool exists."),
    ("Reserve", "string", ".status.plan.reserve", 1, "Memory of a worker that is kept for sessions."),
    ("GPU", "string", ".status.accelerator", 1, "What workers run on."),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1, "Why the pool is Ready or is not."),
)


def crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": "DecodePool",
                "listKind": "DecodePoolList",
                "plural": "decodepools",
                "singular": "decodepool",
                "shortNames": ["dpool"],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def schema() -> Schema:
    """Return the structural schema of a DecodePool, with its status."""
    whole = DecodePool.model_json_schema()
    return {
        "type": "object",
        "description": whole["description"],
        "required": ["spec"],
        RULES: whole[RULES],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {API_VERSION}."},
            "kind": {"type": "string", "description": "Always DecodePool."},
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": OBJECT_NAME_LETTERS}},
            },
            "spec": structural(DecodePoolSpec.model_json_schema()),
            "status": structural(DecodePoolStatus.model_json_schema()),
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": description}
            for name, kind, path, priority, description in COLUMNS
        ],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": schema()},
    }


def missing_fields(installed: dict[str, Any]) -> list[str]:
    """Return the fields that this operator knows and an installed CustomResourceDefinition does not: they would be
    dropped in silence. Such a definition is of an older release.
    """
    versions = {version["name"]: version for version in installed.get("spec", {}).get("versions", [])}
    found = versions.get(VERSION, {}).get("schema", {}).get("openAPIV3Schema", {})
    known = fields(found)
    return [path for path in fields(schema()) if path not in known]


class _Plain(yaml.SafeDumper):
    """YAML without anchors: every part is written out where it belongs."""

    def ignore_aliases(self, _data: object) -> bool:
        """Tell that nothing is an alias."""
        return True


def text() -> str:
    """Return the CustomResourceDefinition as YAML."""
    return GENERATED + yaml.dump(crd(), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)


def outputs(root: Path) -> dict[Path, str]:
    """Return what belongs into each generated file of a repository."""
    return {
        root / "crds" / "decodepools.yaml": text(),
        root / "charts" / "decodepool" / "files" / "decodepools.yaml": text(),
        root / "docs" / "crd.md": page(schema()),
    }


def main() -> None:
    """Write every generated file below the folder given, or below this one."""
    for path, content in outputs(Path(sys.argv[1] if len(sys.argv) > 1 else ".")).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


if __name__ == "__main__":
    main()
