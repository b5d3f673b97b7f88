from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from decodepool_cluster import tools
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import start_time
from decodepool_operator.definition.crd import NAME

from tests.chart.rendering import Helm

CRD = Path(__file__).parents[2] / "crds" / "decodepools.yaml"
RUNS = Path(tempfile.gettempdir()) / "decodepool-chart-tests"
"""A folder for each run of tests, named PID.START: what a killed run left is stopped by the next."""
ESTABLISHED_SECONDS = 30


@pytest.fixture(scope="session")
def helm() -> Helm:
    """The helm of the local cluster, or the one that is in PATH."""
    found = Helm.found()
    if found is None:
        pytest.skip("helm is not in PATH and not built: `make test-cluster` builds it, once")
    return found


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """A real API server with its controllers, and no node."""
    if reason := tools.missing_for_building():
        pytest.skip(reason)
    _stop_what_killed_runs_left()
    cluster = Cluster(RUNS / f"{os.getpid()}.{start_time(os.getpid())}", tools.build())
    try:
        cluster.start(nodes=0)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def server(control_plane: Cluster) -> Cluster:
    """The API server with the definition that is in the repository."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    while not _is_established(control_plane):
        assert time.monotonic() < deadline, f"{NAME} is not served after {ESTABLISHED_SECONDS} s"
        time.sleep(0.1)
    return control_plane


def _is_established(cluster: Cluster) -> bool:
    """Tell whether the definition is served. `kubectl wait` fails where it looks before there are conditions at all."""
    conditions = json.loads(cluster.kubectl("get", f"crd/{NAME}", "-o", "json"))["status"].get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _stop_what_killed_runs_left() -> None:
    for home in RUNS.glob("*.*"):
        pid, _, started = home.name.partition(".")
        if str(start_time(int(pid))) != started:
            Cluster(home, tools.tools_folder()).stop()
