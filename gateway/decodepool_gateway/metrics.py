"""Prometheus metrics: what this gateway did, and the pool as it sees it. Names carry units.

Every replica tells of the same pool: take `max` over gateways of `decodepool_pool_*`, and `sum` of the queued requests
and of everything that counts requests.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from decodepool_gateway.placements import Placements
from decodepool_gateway.pool import Pool

# A start time beside every counter would double the series, and Prometheus ignores it.
disable_created_metrics()  # type: ignore[no-untyped-call]

QUEUE_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ANSWER_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STATES = ("ready", "unready", "draining", "unreachable")


class Metrics:
    """What the gateway counts."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "decodepool_gateway_requests",
            "HTTP requests by route and status; 499 is a client that left first.",
            ["method", "route", "status"],
            registry=registry,
        )
        self.refused = Counter(
            "decodepool_gateway_refused",
            "Requests that the gateway itself refused, by the code of the error.",
            ["reason"],
            registry=registry,
        )
        self.disconnects = Counter(
            "decodepool_gateway_disconnects", "Requests whose client left before the answer.", registry=registry
        )
        self.placements = Counter(
            "decodepool_gateway_placements",
            "Attempts to put a session on a worker: placed, full, refused, unreachable.",
            ["outcome"],
            registry=registry,
        )
        self.streams = Gauge("decodepool_gateway_open_streams", "Event streams being passed on.", registry=registry)
        self.queue_seconds = Histogram(
            "decodepool_gateway_queue_seconds",
            "From a new session's request to a place for it.",
            buckets=QUEUE_SECONDS,
            registry=registry,
        )
        self.answer_seconds = Histogram(
            "decodepool_gateway_answer_seconds",
            "From passing a request on to the head of its answer: the worker's share.",
            buckets=ANSWER_SECONDS,
            registry=registry,
        )

    def watch(self, pool: Pool, placements: Placements) -> None:
        """Add the pool's own counts to every scrape."""
        self.registry.register(_PoolCollector(pool, placements))

    def exposition(self) -> bytes:
        """Return the text that a scrape gets."""
        return generate_latest(self.registry)


class _PoolCollector(Collector):
    """Turns the pool of this moment into metric families."""

    def __init__(self, pool: Pool, placements: Placements) -> None:
        self._pool = pool
        self._placements = placements

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        admitting = self._pool.admitting
        capacity, free = sum(each.capacity for each in admitting), sum(each.free for each in admitting)
        queued = self._placements.queued
        wanted = capacity - free + queued
        yield _gauge("session_capacity", "Places on the workers that take sessions.", capacity)
        yield _gauge("sessions_active", "Places of them that are taken.", capacity - free)
        yield _gauge("sessions_free", "Places of them that are free.", free)
        yield _gauge("queued", "Requests that wait for a place, at this gateway.", queued)
        yield _gauge(
            "utilization_ratio",
            "Sessions and this gateway's queued requests by places: over 1 while somebody waits.",
            wanted / capacity if capacity else float(wanted > 0),
        )
        workers = GaugeMetricFamily("decodepool_pool_workers", "Workers by state.", labels=["state"])
        states = Tally(worker.state for worker in self._pool.workers)
        for state in STATES:
            workers.add_metric([state], states[state])
        yield workers

    def describe(self) -> Iterator[Metric]:
        """Describe nothing: there is nothing to collide with."""
        return iter(())


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"decodepool_pool_{name}", text, value=value)
