"""The chart through helm: rendered, or refused with helm's own words."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts" / "decodepool"
RELEASE = ("decodepool", str(CHART), "--namespace", "decodepool-system")

Objects = dict[tuple[str, str], dict[str, Any]]
"""Rendered objects by kind and name; those in other namespaces as `NAMESPACE/NAME`."""


class Refused(Exception):
    """Helm did not take it. The text is what it said."""


@dataclass(frozen=True)
class Helm:
    """One helm program."""

    path: str

    def run(self, *arguments: str) -> str:
        """Run it; Refused with what it said where it fails."""
        done = subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise Refused(done.stderr + done.stdout)
        return done.stdout

    def render(self, *arguments: str) -> str:
        """Return the chart's manifests for some values."""
        return self.run("template", *RELEASE, *arguments)

    def objects(self, *arguments: str) -> Objects:
        """Return the rendered objects."""
        found = [document for document in yaml.safe_load_all(self.render(*arguments)) if document]
        return {(each["kind"], _name(each["metadata"])): each for each in found}


def _name(metadata: dict[str, Any]) -> str:
    namespace = metadata.get("namespace", "decodepool-system")
    return metadata["name"] if namespace == "decodepool-system" else f"{namespace}/{metadata['name']}"
