"""Prometheus metrics in a registry of their own. Names carry units; what sessions count is read at scrape time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from decodepool_worker.sessions.stats import Stats, StepReport

# A start time beside every counter would double the series, and Prometheus ignores it.
disable_created_metrics()  # type: ignore[no-untyped-call]

STEP_SECONDS = (
    0.001,
    0.002,
    0.004,
    0.006,
    0.008,
    0.012,
    0.016,
    0.024,
    0.032,
    0.048,
    0.064,
    0.128,
    0.256,
    0.512,
    1,
    2,
    5,
)
STEP_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

StatsReader = Callable[[], Stats | None]
"""Return the present counts, or None while nothing is loaded."""


class Metrics:
    """What the worker counts about requests and steps. `observe_step` is called on the step loop's thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.stepping_seconds = 0.0  # written by the step loop alone
        self.requests = Counter(
            "decodepool_requests",
            "HTTP requests by route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.refused = Counter(
            "decodepool_refused", "Requests refused, by the code of the error.", ["reason"], registry=self.registry
        )
        self.streams = Gauge("decodepool_open_streams", "Event streams being written.", registry=self.registry)
        self.disconnects = Counter(
            "decodepool_disconnects", "Requests whose client left before the answer.", registry=self.registry
        )
        self.first_token = _seconds(
            "decodepool_first_token_seconds", "From a decode's request to its first token.", self.registry
        )
        self.step_seconds = Histogram(
            "decodepool_step_seconds", "Time of an engine step.", buckets=STEP_SECONDS, registry=self.registry
        )
        self.step_rows = Histogram(
            "decodepool_step_rows",
            "Rows of an engine step, decode and prefill.",
            buckets=STEP_ROWS,
            registry=self.registry,
        )

    def observe_step(self, step: StepReport) -> None:
        """Record one step."""
        self.stepping_seconds += step.seconds
        self.step_seconds.observe(step.seconds)
        self.step_rows.observe(step.decode_rows + step.prefill_rows)

    def watch(self, read_stats: StatsReader, ready: Callable[[], bool]) -> None:
        """Add the sessions' own counts to every scrape."""
        self.registry.register(_SessionCollector(read_stats, ready))

    def exposition(self) -> bytes:
        """Return the text that a scrape gets."""
        return generate_latest(self.registry)


def _seconds(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, text, buckets=FIRST_TOKEN_SECONDS, registry=registry)


class _SessionCollector(Collector):
    """Turns one `Stats` into metric families."""

    def __init__(self, read_stats: StatsReader, ready: Callable[[], bool]) -> None:
        self._read_stats = read_stats
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        """Yield every family; only readiness while nothing is loaded."""
        yield GaugeMetricFamily("decodepool_ready", "1 while new sessions are admitted.", value=float(self._ready()))
        stats = self._read_stats()
        if stats is not None:
            yield from _gauges(stats)
            yield from _counters(stats)

    def describe(self) -> Iterator[Metric]:
        """Describe nothing: asked at registration, when there may be no stats yet."""
        return iter(())


def _gauges(stats: Stats) -> Iterator[Metric]:
    sessions = GaugeMetricFamily("decodepool_sessions", "Resident sessions by state.", labels=["state"])
    for state, count in stats.sessions.items():
        sessions.add_metric([state.value], count)
    yield sessions
    yield GaugeMetricFamily("decodepool_session_capacity", "Sessions that fit.", value=stats.session_capacity)
    pages = GaugeMetricFamily("decodepool_pages", "Pages of KV by use.", labels=["use"])
    for use in ("used", "kept", "free"):
        pages.add_metric([use], getattr(stats.pages, use))
    yield pages
    yield GaugeMetricFamily("decodepool_reserve_pages", "Pages set aside for sessions.", value=stats.pages.reserve)
    yield GaugeMetricFamily("decodepool_reserved_pages", "Pages promised to open sessions.", value=stats.pages.reserved)


COUNTERS = {
    "decodepool_steps": ("steps", "Engine steps."),
    "decodepool_decoded_tokens": ("decoded_tokens", "Tokens drawn."),
    "decodepool_prefilled_tokens": ("prefilled_tokens", "Given tokens evaluated."),
    "decodepool_reused_tokens": ("reused_tokens", "Given tokens found in a kept prefix."),
    "decodepool_sessions_created": ("sessions_created", "Sessions admitted, forks too."),
    "decodepool_sessions_closed": ("sessions_closed", "Sessions closed."),
    "decodepool_sessions_failed": ("sessions_failed", "Sessions ended by a fault."),
    "decodepool_sessions_refused": ("sessions_refused", "Sessions not admitted for want of room."),
}


def _counters(stats: Stats) -> Iterator[Metric]:
    for name, (field, text) in COUNTERS.items():
        yield CounterMetricFamily(name, text, value=getattr(stats.totals, field))
