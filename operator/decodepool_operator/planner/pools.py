"""A pool as the planner reads it, and the names of everything that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from decodepool_sizing.manifest import API_VERSION, DecodePoolSpec, parse_manifest

from decodepool_operator.names import COMPONENT_LABEL, MANAGER, MANAGER_LABEL, NAME_LABEL, POOL_LABEL, PRODUCT_NAME
from decodepool_operator.planner.resolution import source_key
from decodepool_operator.planner.state import Object


@dataclass(frozen=True)
class Pool:
    """A pool whose spec is sound. `status` is what was written last; nothing in it is believed without a check."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: DecodePoolSpec
    status: Object
    raw: Object

    @cached_property
    def source(self) -> str:
        """The key of the model's present source."""
        return source_key(self.raw)

    @property
    def kind(self) -> Any:
        """The kind of device that workers run on."""
        return "cpu" if self.spec.accelerator.type == "cpu" else "cuda"

    @property
    def spec_changed(self) -> bool:
        """Whether the status speaks of another generation."""
        return bool(self.status.get("observedGeneration") != self.generation)

    def child(self, suffix: str) -> str:
        """Return the name of one of the pool's objects."""
        return f"{self.name}-{suffix}"


def read_pool(raw: Object) -> Pool:
    """Read a pool as the API has it; BadManifest where the spec is not one this operator knows."""
    metadata = raw["metadata"]
    known = {key: metadata.get(key) for key in ("name", "namespace") if key in metadata}
    manifest = parse_manifest({"apiVersion": API_VERSION, "kind": "DecodePool", "metadata": known, "spec": raw["spec"]})
    return Pool(
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 0),
        spec=manifest.spec,
        status=raw.get("status") or {},
        raw=raw,
    )


def labels_of(pool_name: str, component: str) -> dict[str, str]:
    """Return the labels of a pool's object."""
    return {
        NAME_LABEL: PRODUCT_NAME,
        COMPONENT_LABEL: component,
        MANAGER_LABEL: MANAGER,
        POOL_LABEL: pool_name,
    }


def selector_of(pool_name: str, component: str) -> dict[str, str]:
    """Return the labels that select a component's pods: fewer than they have, since a selector can never change."""
    return {POOL_LABEL: pool_name, COMPONENT_LABEL: component}
