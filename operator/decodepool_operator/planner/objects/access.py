"""Who the pool's pods are to the API server: workers are nobody, gateways may look for workers."""

from __future__ import annotations

from decodepool_operator.names import GATEWAY, WORKER
from decodepool_operator.planner.objects.common import made
from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.state import Object

RBAC = "rbac.authorization.k8s.io"


def accounts(pool: Pool) -> list[Object]:
    """Return the service accounts of workers and gateways, and what the gateway's may do."""
    name = pool.child("gateway")
    worker = made(pool, "v1", "ServiceAccount", pool.child("worker"), WORKER, automountServiceAccountToken=False)
    gateway = made(pool, "v1", "ServiceAccount", name, GATEWAY)
    rules = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}]
    role = made(pool, f"{RBAC}/v1", "Role", name, GATEWAY, rules=rules)
    binding = made(
        pool,
        f"{RBAC}/v1",
        "RoleBinding",
        name,
        GATEWAY,
        roleRef={"apiGroup": RBAC, "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": pool.namespace}],
    )
    return [worker, gateway, role, binding]
