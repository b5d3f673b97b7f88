"""The names by which the planner and the shell know a pool, its objects and its pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PoolKey = tuple[str, str]
"""A pool's namespace and name."""

MANAGER = "decodepool-operator"
"""Who writes: the value of `MANAGER_LABEL`, and the field manager."""

POOL_LABEL = "decodepool.dev/pool"
SIDECAR_LABEL = "decodepool.dev/sidecar-of"
COMPONENT_LABEL = "app.kubernetes.io/component"
NAME_LABEL = "app.kubernetes.io/name"
MANAGER_LABEL = "app.kubernetes.io/managed-by"
PRODUCT_NAME = "decodepool"
WORKER, GATEWAY, READER = "worker", "gateway", "reader"
"""Components, which are the endings of their objects' names too."""

WORKER_PORT = 8000
GATEWAY_PORT = 8080


def is_made_for(pod: Mapping[str, Any], pool_name: str, component: str) -> bool:
    """Say whether a pod is that component's Deployment's. One that somebody copied to debug it has the labels too."""
    labels = pod["metadata"].get("labels") or {}
    is_labelled = labels.get(POOL_LABEL) == pool_name and labels.get(COMPONENT_LABEL) == component
    owners = [each for each in pod["metadata"].get("ownerReferences") or () if each.get("controller")]
    return is_labelled and any(
        each["kind"] == "ReplicaSet" and each["name"].startswith(f"{pool_name}-{component}-") for each in owners
    )


def is_owned(body: Mapping[str, Any], pool_uid: str) -> bool:
    """Say whether an object names a pool as its owner. A label is no proof of that."""
    return any(owner.get("uid") == pool_uid for owner in body["metadata"].get("ownerReferences") or ())
