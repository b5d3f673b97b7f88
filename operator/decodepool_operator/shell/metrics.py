"""What Prometheus may know of the operator."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from decodepool_operator.shell.pool_gauges import pool_gauges

# A start time beside every counter would double the series, and Prometheus ignores it.
disable_created_metrics()  # type: ignore[no-untyped-call]

Pools = Callable[[], Iterable[Mapping[str, Any]]]
Gauges = Mapping[str, tuple[str, Callable[[], float]]]
"""Names to a help text and a reading."""

RECONCILE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Every metric of one operator, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "decodepool_operator_reconciles", "Looks at a pool, by their result.", ["result"], registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            "decodepool_operator_reconcile_seconds", "How long a look at a pool took.",
            buckets=RECONCILE_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.errors = Counter(
            "decodepool_operator_errors", "What failed, by where and why.", ["where", "reason"], registry=self.registry
        )
        self.writes = Counter(
            "decodepool_operator_writes", "Requests that change something, by verb and kind.", ["verb", "kind"],
            registry=self.registry,
        )  # fmt: skip
        self.events_seen = Counter(
            "decodepool_operator_watch_events", "Watch events, by kind.", ["kind"], registry=self.registry
        )
        self.sidecars = Counter(
            "decodepool_operator_sidecars", "Pods that the webhook was asked about.", ["result"], registry=self.registry
        )
        self.healed = Counter(
            "decodepool_operator_missed_changes", "Changes that the audit found and no watch told of.", ["kind"],
            registry=self.registry,
        )  # fmt: skip
        self.crd_outdated = Gauge(
            "decodepool_operator_crd_outdated", "1 where the installed CRD lacks fields that this operator needs.",
            registry=self.registry,
        )  # fmt: skip

        self.rivals = Gauge(
            "decodepool_operator_rivals", "Other operators that serve pools of this one.", registry=self.registry
        )
        self.unserved = Gauge(
            "decodepool_operator_unserved_namespaces", "Namespaces of its list in which the operator may not list.",
            registry=self.registry,
        )  # fmt: skip

    def watch(self, pools: Pools, gauges: Gauges) -> None:
        """Read pools' conditions, and gauges (name: help and reading), whenever somebody scrapes."""
        self.registry.register(_Now(pools, gauges))

    def exposition(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        return generate_latest(self.registry)


class _Now(Collector):
    """Values that are read, not counted."""

    def __init__(self, pools: Pools, gauges: Gauges) -> None:
        self._pools = pools
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Yield the pools by condition, then every gauge."""
        pools = tuple(self._pools())
        yield GaugeMetricFamily("decodepool_operator_pools", "Pools there are.", value=len(pools))
        conditions = GaugeMetricFamily(
            "decodepool_operator_pool_conditions", "Pools by condition and its status.", labels=["type", "status"]
        )
        for labels, count in sorted(_conditions(pools).items()):
            conditions.add_metric(labels, count)
        yield conditions
        yield from pool_gauges(pools)
        for name, (text, read) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value=read())


def _conditions(pools: Iterable[Mapping[str, Any]]) -> Counts[tuple[str, str]]:
    return Counts(
        (str(condition.get("type")), str(condition.get("status")))
        for pool in pools
        for condition in (pool.get("status") or {}).get("conditions") or ()
    )
