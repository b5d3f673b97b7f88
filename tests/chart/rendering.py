"""The chart through helm: rendered, or refused with helm's own words. `python -m tests.chart.rendering` writes the
snapshots again.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from decodepool_cluster import tools

CHART = Path(__file__).parents[2] / "charts" / "decodepool"
VALUES = Path(__file__).parent / "values"
SNAPSHOTS = Path(__file__).parent / "snapshots"
RELEASE = ("decodepool", str(CHART), "--namespace", "decodepool-system")

Objects = dict[tuple[str, str], dict[str, Any]]
"""Rendered objects by kind and name; those in other namespaces as `NAMESPACE/NAME`."""


class Refused(ValueError):  # noqa: N818 - what helm did, as ClusterFault is what a cluster did
    """Helm did not take it. The text is what it said."""


@dataclass(frozen=True)
class Helm:
    """One helm program."""

    path: str

    @classmethod
    def found(cls) -> Self | None:
        """Return the helm of the local cluster, else the one in PATH, if any."""
        built = tools.tools_folder() / "helm"
        path = str(built) if built.exists() else shutil.which("helm")
        return cls(path) if path else None

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


def snapshot(helm: Helm, values: Path) -> str:
    """Return what is kept of a rendering: all but the CustomResourceDefinition, which is kept elsewhere."""
    documents = helm.render("--values", str(values)).split("\n---\n")
    kept = [document.strip() for document in documents if "\nkind: CustomResourceDefinition\n" not in document]
    return "\n---\n".join(kept) + "\n"


def main() -> None:
    """Write every snapshot again."""
    helm = Helm.found()
    assert helm, "helm is not in PATH and not built: `make test-cluster` builds it, once"
    for values in sorted(VALUES.glob("*.yaml")):
        (SNAPSHOTS / values.name).write_text(snapshot(helm, values))


if __name__ == "__main__":
    main()
