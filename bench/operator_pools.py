"""Many pools on a real API server: how long the operator takes for all of them, what it costs, how soon it follows one.

    python -m bench.operator_pools --pools 1000 --out bench/results/operator-1000-pools.json

Needs root and the cluster's tools (`make test-cluster` builds them, once). A control plane of its own is started,
without nodes; pools are suspended, of a tiny model that is read over HTTP, so that the operator has all of its work (a
header to read, a plan, children and a status each) and nobody has pods to run.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from decodepool_cli.provenance import provenance
from decodepool_cluster import tools
from decodepool_cluster.cluster import Cluster
from decodepool_operator.api.kinds import POOLS
from decodepool_operator.definition.crd import crd

from tests.cluster.shell.plane import NAMESPACES, OperatorProcess, Plane, until
from tests.sizing.gguf_bytes import tiny
from tests.sizing.test_ranged_http import served

SPACE = "many"
IDLE_SECONDS = 60
CHANGES = 20
WRITES = "decodepool_operator_writes_total"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pools", type=int, default=1000)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="decodepool-bench-") as folder:
        cluster = Cluster(Path(folder) / "plane", tools.tools_folder())
        try:
            cluster.start(nodes=0)
            with cluster.entered(), served(tiny()) as model:
                plane = Plane(cluster)
                plane.install(crd())
                figures = measure(plane, model.url, given.pools, Path(folder))
        finally:
            cluster.stop()
    loads = {"load_average": {"before": before, "after": os.getloadavg()}}
    given.out.write_text(json.dumps({**provenance(), **loads, "pools": given.pools, **figures}, indent=2) + "\n")
    print(given.out.read_text())


def measure(plane: Plane, url: str, pools: int, folder: Path) -> dict[str, Any]:
    """Return the figures of one run."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    plane.api.call("POST", NAMESPACES.path(), namespace)
    admin = Path(f"{plane.cluster.home}/admin.kubeconfig")
    operator = OperatorProcess(admin, folder / "operator.log", LOG_LEVEL="WARNING", ALLOW_LOCAL_URLS="true")
    operator.start()
    try:
        made = seconds_of(lambda: make_all(plane, url, pools))
        settled = made + seconds_of(lambda: until(lambda: planned(plane) == pools, "every pool to be planned", 3600))
        until(lambda: is_quiet(operator), "the operator to be quiet", 600)
        writes, busy = operator.metric(WRITES), cpu_seconds(operator)
        versions = resource_versions(plane)
        time.sleep(IDLE_SECONDS)
        idle = {
            "writes": operator.metric(WRITES) - writes,
            "pools_written": len(resource_versions(plane) - versions),
            "cpu_seconds": round(cpu_seconds(operator) - busy, 2),
        }
        names = [f"pool-{n * pools // CHANGES}" for n in range(CHANGES)]
        followed = [seconds_of(partial(follow_one, plane, name)) for name in names]
        peak = operator.peak_mib()
        again = seconds_of(lambda: restart(operator))
        return {
            "create_and_plan_all_seconds": round(settled, 1),
            "of_which_creating_seconds": round(made, 1),
            "writes_for_all": writes,
            "cpu_seconds_for_all": round(busy, 1),
            "peak_resident_mib": peak,
            f"idle_{IDLE_SECONDS}_seconds": idle,
            "one_change_followed_seconds": {"median": round(median(followed), 3), "slowest": round(max(followed), 3)},
            "restart_until_all_listed_seconds": round(again, 1),
            "restart_peak_resident_mib": operator.peak_mib(),
            "errors": operator.metric("decodepool_operator_errors_total"),
        }
    finally:
        operator.kill()


def make_all(plane: Plane, url: str, pools: int) -> None:
    def make(number: int) -> None:
        plane.make(SPACE, f"pool-{number}", url, sessionsPerWorker=4, suspend=True)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(make, range(pools)))


def planned(plane: Plane) -> int:
    items = plane.api.call("GET", POOLS.path(SPACE))["items"]
    return sum((pool.get("status") or {}).get("plan", {}).get("sessionsPerWorker") == 4 for pool in items)


def resource_versions(plane: Plane) -> set[str]:
    return {pool["metadata"]["resourceVersion"] for pool in plane.api.call("GET", POOLS.path(SPACE))["items"]}


def follow_one(plane: Plane, name: str) -> None:
    plane.set_spec(SPACE, name, sessionsPerWorker=6)
    while (plane.pool(SPACE, name).get("status") or {}).get("plan", {}).get("sessionsPerWorker") != 6:
        time.sleep(0.02)


def is_quiet(operator: OperatorProcess) -> bool:
    before = operator.metric(WRITES)
    time.sleep(10)
    return operator.metric(WRITES) == before


def restart(operator: OperatorProcess) -> None:
    operator.stop()
    operator.start(ready=False)
    until(lambda: operator.probe("/readyz") == 200, "the operator to be ready", 600)


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def cpu_seconds(operator: OperatorProcess) -> float:
    assert operator.pid is not None
    times = psutil.Process(operator.pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
