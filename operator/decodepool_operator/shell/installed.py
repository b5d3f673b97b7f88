"""What the cluster has that this operator needs: the CRD, and whether it is as new as the operator.

Asked through discovery and the OpenAPI document, which every service account may read: no right to read CRDs is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodepool_operator.api.client import Api
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import GROUP, POD_MONITORS, POOL_KIND, POOLS, VERSION, Kind
from decodepool_operator.definition.crd import missing_fields

SHOWN_FIELDS = 5
UPGRADE = "kubectl apply --server-side --force-conflicts -f decodepools.yaml"


def is_served(api: Api, kind: Kind) -> bool:
    """Whether the API server serves a kind. ApiFault where it does not answer. Blocks."""
    try:
        answer = api.read(f"/apis/{kind.group}/{kind.version}")
    except ApiFault as fault:
        if fault.refusal is Refusal.NOT_FOUND:
            return False
        raise
    return any(resource["name"] == kind.plural for resource in answer.get("resources", ()))


def has_pools(api: Api) -> bool:
    """Whether the CRD is there. Blocks."""
    return is_served(api, POOLS)


def has_pod_monitors(api: Api) -> bool:
    """Whether PodMonitors can be made. Blocks."""
    return is_served(api, POD_MONITORS)


def crd_notice(api: Api) -> str | None:
    """Return one line where the installed CRD is older than this operator, None where it is not. Blocks."""
    missing = missing_in(api.read(f"/openapi/v3/apis/{GROUP}/{VERSION}"))
    if not missing:
        return None
    more = len(missing) - SHOWN_FIELDS
    shown = ", ".join(missing[:SHOWN_FIELDS]) + (f" and {more} more" if more > 0 else "")
    return f"the installed CRD is older than this operator and drops {shown}: {UPGRADE}"


def missing_in(document: Mapping[str, Any]) -> list[str]:
    """Return the fields of a pool that an OpenAPI document lacks; none where it does not tell of pools at all."""
    for component in document.get("components", {}).get("schemas", {}).values():
        kinds = {kind.get("kind") for kind in component.get("x-kubernetes-group-version-kind", ())}
        if POOL_KIND in kinds:
            # `metadata` is a reference to the one of every kind: nothing of ours is in it
            properties = {**component.get("properties", {}), "metadata": {"properties": {"name": {}}}}
            schema = {"openAPIV3Schema": {**component, "properties": properties}}
            return missing_fields({"spec": {"versions": [{"name": VERSION, "schema": schema}]}})
    return []
