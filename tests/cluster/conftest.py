from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from decodepool_cluster import product, tools
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import is_alive, mark_of

REUSED = os.environ.get("DECODEPOOL_TEST_CLUSTER")
"""The home of a cluster that runs already and goes on running, as .cluster: for writing tests, where 20 s count."""
RUNS = Path(tempfile.gettempdir()) / "decodepool-cluster-tests"
"""A folder for each run of tests, named PID.START: what a killed run left is found, and stopped, by the next."""


def stop_what_killed_runs_left() -> None:
    for home in RUNS.glob("*.*"):
        if not is_alive(home.name):
            Cluster(home, tools.tools_folder()).stop()


@pytest.fixture(scope="session")
def bare_cluster() -> Iterator[Cluster]:
    """A real cluster of one node, with nothing of ours in it."""
    if reason := tools.missing_for_building():
        pytest.skip(reason)
    if not tools.are_built():
        pytest.skip("the cluster's tools are not built: `make test-cluster` builds them, once")
    if REUSED:
        yield Cluster(Path(REUSED), tools.tools_folder())
        return
    stop_what_killed_runs_left()
    tools.build()
    cluster = Cluster(RUNS / mark_of(os.getpid()), tools.tools_folder())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def cluster(bare_cluster: Cluster) -> Cluster:
    """The cluster with the product's images and SmolLM2 on its node, and the chart installed."""
    product.furnish(bare_cluster)
    product.install(bare_cluster)
    return bare_cluster


@pytest.fixture
def namespace(bare_cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own; its deletion is not waited for."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    bare_cluster.kubectl("create", "namespace", name)
    yield name
    bare_cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(autouse=True)
def inside(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that uses a cluster runs inside its network: 127.0.0.1:6443, pods and Services are reached as they are."""
    if not {"cluster", "bare_cluster", "namespace"} & set(request.fixturenames):
        yield
        return
    running: Cluster = request.getfixturevalue("bare_cluster")
    with running.entered():
        yield
