"""What the product's programs export to Prometheus, by asking each program's own registry."""

from __future__ import annotations

import re

from decodepool_gateway.metrics import Metrics as GatewayMetrics
from decodepool_gateway.placements import Placements, QueueLimits
from decodepool_gateway.pool import Pool
from decodepool_operator.shell.metrics import Metrics as OperatorMetrics
from decodepool_worker.serving.metrics import COUNTERS
from decodepool_worker.serving.metrics import Metrics as WorkerMetrics

OF_SESSIONS = {"decodepool_sessions", "decodepool_session_capacity", "decodepool_pages", "decodepool_reserve_pages",
               "decodepool_reserved_pages", *(f"{name}_total" for name in COUNTERS)}  # fmt: skip
"""What a worker exports once a model is loaded; tests/docs hold docs/operating.md to a live one."""

POOL = {
    "metadata": {"name": "p", "namespace": "n"},
    "status": {
        "workers": "1/2",
        "sessions": {"capacity": 8, "active": 3, "queued": 0},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}],
    },
}


def series() -> set[str]:
    """The names of all series, those of histograms with their endings."""
    gateway, operator, worker = GatewayMetrics(), OperatorMetrics(), WorkerMetrics()
    pool = Pool()
    gateway.watch(pool, Placements(pool, QueueLimits(), lambda: 0.0))
    operator.watch(lambda: [POOL], {name: ("", lambda: 0.0) for name in ("decodepool_operator_heartbeat_age_seconds",)})
    worker.watch(lambda: None, lambda: True)
    text = b"".join([gateway.exposition(), operator.exposition(), worker.exposition()]).decode()
    families = re.findall(r"^# TYPE (\w+) (\w+)", text, re.MULTILINE)
    endings = {"histogram": ("_bucket", "_sum", "_count")}
    return OF_SESSIONS | {name + ending for name, kind in families for ending in endings.get(kind, ("",))}
