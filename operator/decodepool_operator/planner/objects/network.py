"""How a pool is reached, and by whom."""

from __future__ import annotations

from decodepool_operator.names import (
    COMPONENT_LABEL,
    GATEWAY,
    NAME_LABEL,
    POOL_LABEL,
    PRODUCT_NAME,
    WORKER,
    WORKER_PORT,
)
from decodepool_operator.planner.objects.common import PORT_NAME, made
from decodepool_operator.planner.pools import Pool, selector_of
from decodepool_operator.planner.state import Object, Scraping

CLIENT_PORT = 80


def endpoint(pool: Pool) -> str:
    """Return where clients connect to."""
    return f"http://{pool.name}.{pool.namespace}.svc"


def client_service(pool: Pool) -> Object:
    """Return the Service of the gateways, which bears the pool's own name."""
    port = {"name": PORT_NAME, "port": CLIENT_PORT, "targetPort": PORT_NAME, "protocol": "TCP"}
    spec = {"type": "ClusterIP", "selector": selector_of(pool.name, GATEWAY), "ports": [port]}
    return made(pool, "v1", "Service", pool.name, GATEWAY, spec=spec)


def workers_service(pool: Pool) -> Object:
    """Return the headless Service whose endpoints are the workers that admit sessions."""
    port = {"name": PORT_NAME, "port": WORKER_PORT, "targetPort": PORT_NAME, "protocol": "TCP"}
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": False,
        "selector": selector_of(pool.name, WORKER),
        "ports": [port],
    }
    return made(pool, "v1", "Service", pool.child("workers"), WORKER, spec=spec)


def network_policy(pool: Pool, operator_namespace: str) -> Object:
    """Return who may reach a worker: the pool's gateways, the operator in its own namespace, since labels are anybody's
    elsewhere, and monitoring.
    """
    everywhere: Object = {"namespaceSelector": {}}
    home: Object = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}}}
    operator = {"matchLabels": {NAME_LABEL: PRODUCT_NAME, COMPONENT_LABEL: "operator"}}
    sources = [
        {"podSelector": {"matchLabels": {POOL_LABEL: pool.name, COMPONENT_LABEL: GATEWAY}}},
        {**home, "podSelector": operator},
        {**everywhere, "podSelector": {"matchLabels": {NAME_LABEL: "prometheus"}}},
    ]
    spec = {
        "podSelector": {"matchLabels": selector_of(pool.name, WORKER)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": sources, "ports": [{"port": WORKER_PORT, "protocol": "TCP"}]}],
    }
    return made(pool, "networking.k8s.io/v1", "NetworkPolicy", pool.child("worker"), WORKER, spec=spec)


def disruption_budget(pool: Pool, component: str) -> Object:
    """Return the budget of node drains: one pod of a component at a time; one that is not ready is in nobody's way."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector_of(pool.name, component)},
    }
    return made(pool, "policy/v1", "PodDisruptionBudget", pool.child(component), component, spec=spec)


def pod_monitor(pool: Pool, scraping: Scraping) -> Object:
    """Return what tells a Prometheus operator to scrape the pool's pods."""
    expressions = [{"key": COMPONENT_LABEL, "operator": "In", "values": [WORKER, GATEWAY]}]
    label = {"sourceLabels": ["__meta_kubernetes_pod_label_decodepool_dev_pool"], "targetLabel": "pool"}
    endpoint: Object = {"port": PORT_NAME, "path": "/metrics", "relabelings": [label]}
    if scraping.interval_seconds is not None:
        endpoint["interval"] = f"{scraping.interval_seconds}s"
    spec = {
        "selector": {"matchLabels": {POOL_LABEL: pool.name}, "matchExpressions": expressions},
        "podMetricsEndpoints": [endpoint],
    }
    monitor = made(pool, "monitoring.coreos.com/v1", "PodMonitor", pool.name, WORKER, spec=spec)
    monitor["metadata"]["labels"] = {**scraping.labels, **monitor["metadata"]["labels"]}
    return monitor
