from __future__ import annotations

import os
import tempfile
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
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{NAME}")
    return control_plane


def _stop_what_killed_runs_left() -> None:
    for home in RUNS.glob("*.*"):
        pid, _, started = home.name.partition(".")
        if str(start_time(int(pid))) != started:
            Cluster(home, tools.tools_folder()).stop()
