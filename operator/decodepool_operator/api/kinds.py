"""The kinds this operator reads and writes, and where the API serves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decodepool_sizing.manifest import API_VERSION

from decodepool_operator.names import MANAGER, MANAGER_LABEL, POOL_LABEL

GROUP, VERSION = API_VERSION.split("/")
POOL_KIND = "DecodePool"


@dataclass(frozen=True)
class Kind:
    """A kind as the API serves it. `selector` narrows what is watched of it to what may concern a pool."""

    group: str
    version: str
    name: str
    plural: str
    selector: str | None = None
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apps/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of an object, of a collection, or of a subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return root + inside + "".join(f"/{part}" for part in (self.plural, name, subresource) if part)


OURS = f"{MANAGER_LABEL}={MANAGER}"
"""What every child carries, so that a watch is not told of the rest of the cluster."""

POOLS = Kind(GROUP, VERSION, POOL_KIND, "decodepools")
PODS = Kind("", "v1", "Pod", "pods", POOL_LABEL)
NODES = Kind("", "v1", "Node", "nodes", namespaced=False)
LEASES = Kind("coordination.k8s.io", "v1", "Lease", "leases")
EVENTS = Kind("", "v1", "Event", "events")
SECRETS = Kind("", "v1", "Secret", "secrets")
POD_MONITORS = Kind("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", OURS)
MUTATING_WEBHOOKS = Kind(
    "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations",
    namespaced=False,
)  # fmt: skip

CHILDREN = (
    Kind("apps", "v1", "Deployment", "deployments", OURS),
    Kind("batch", "v1", "Job", "jobs", OURS),
    Kind("", "v1", "Service", "services", OURS),
    Kind("", "v1", "ServiceAccount", "serviceaccounts", OURS),
    Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", OURS),
    Kind("rbac.authorization.k8s.io", "v1", "Role", "roles", OURS),
    Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", OURS),
    Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", OURS),
    Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", OURS),
)

_BY_NAME: Mapping[tuple[str, str], Kind] = {
    (kind.api_version, kind.name): kind
    for kind in (POOLS, PODS, NODES, LEASES, EVENTS, SECRETS, POD_MONITORS, MUTATING_WEBHOOKS, *CHILDREN)
}


def kind_of(body: Mapping[str, Any]) -> Kind:
    """Return the kind of an object; KeyError for one that this operator has no business with."""
    return _BY_NAME[str(body.get("apiVersion")), str(body.get("kind"))]
