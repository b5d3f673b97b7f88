"""Where things are in the cluster's network, which has no way out: the same in every cluster."""

from __future__ import annotations

CONTROL_PLANE = "10.250.0.1"
SERVICES = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"
PODS = "10.244.0.0/16"
MOST_NODES = 9
NODES = {f"node-{number}": f"10.250.0.{10 + number}" for number in range(1, MOST_NODES + 1)}
API_SERVER = "https://127.0.0.1:6443"
DOMAIN = "cluster.local"


def pods_of(node: str) -> str:
    """Return the range of a node's pods."""
    return f"10.244.{node.removeprefix('node-')}.0/24"
