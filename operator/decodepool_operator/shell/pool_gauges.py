"""What Prometheus may know of each pool: its own status as numbers, so that an alert can name the pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

PREFIX = "decodepool_operator_pool"


def pool_gauges(pools: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield a family for readiness, for conditions, for sessions and for workers. What a status lacks is left out."""
    ready = _family("ready", "1 where the pool is Ready, with the reason.", "reason")
    conditions = _family("condition", "1 where a condition of the pool is True.", "type")
    sessions = _family("sessions", "Sessions of the pool: capacity, active, queued.", "kind")
    workers = _family("workers", "Workers of the pool: ready, wanted.", "state")
    for pool in pools:
        name = [str(pool["metadata"].get("namespace")), str(pool["metadata"].get("name"))]
        for condition in (pool.get("status") or {}).get("conditions") or ():
            is_true = float(condition.get("status") == "True")
            conditions.add_metric([*name, str(condition.get("type"))], is_true)
            if condition.get("type") == "Ready":
                ready.add_metric([*name, str(condition.get("reason"))], is_true)
        _add(sessions, name, _sessions(pool))
        _add(workers, name, _workers(pool))
    yield from (ready, conditions, sessions, workers)


def _family(name: str, text: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["namespace", "pool", label])


def _add(family: GaugeMetricFamily, name: list[str], values: Mapping[str, Any]) -> None:
    for label, value in values.items():
        if value is not None:
            family.add_metric([*name, label], value)


def _sessions(pool: Mapping[str, Any]) -> dict[str, Any]:
    told = (pool.get("status") or {}).get("sessions") or {}
    return {kind: told.get(kind) for kind in ("capacity", "active", "queued")}


def _workers(pool: Mapping[str, Any]) -> dict[str, Any]:
    spec = pool.get("spec") or {}
    wanted = 0 if spec.get("suspend") else spec.get("replicas")
    return {"ready": (pool.get("status") or {}).get("readyReplicas"), "wanted": wanted}
