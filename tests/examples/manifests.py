"""The example manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))


def objects(manifest: Path) -> list[dict[str, Any]]:
    """The objects of one manifest."""
    return [document for document in yaml.safe_load_all(manifest.read_text()) if document]


def pools(manifest: Path) -> list[dict[str, Any]]:
    """The pools of one manifest."""
    return [each for each in objects(manifest) if each["kind"] == "DecodePool"]
