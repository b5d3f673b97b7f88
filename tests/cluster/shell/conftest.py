from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from decodepool_cluster import tools
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import start_time
from decodepool_operator.definition.crd import crd

from tests.cluster.shell.fake_nodes import fake_nodes
from tests.cluster.shell.gpu_site import Site
from tests.cluster.shell.plane import OperatorProcess, Plane
from tests.sizing.gguf_bytes import tiny
from tests.sizing.test_ranged_http import served

PLANES = Path(tempfile.gettempdir()) / "decodepool-plane-tests"
QUICK = {"HEARTBEAT_SECONDS": "1", "BLIND_LIMIT_SECONDS": "8", "REPORT_SECONDS": "5", "AUDIT_SECONDS": "300"}
"""An operator that would tell of its blindness after seconds, so that a test can wait for it."""

Operators = Callable[..., OperatorProcess]


@pytest.fixture(scope="session")
def whole_plane() -> Iterator[Plane]:
    """A control plane of its own, with the CRD and no nodes: killing its parts disturbs no other test."""
    if reason := tools.missing_for_building():
        pytest.skip(reason)
    if not tools.are_built():
        pytest.skip("the cluster's tools are not built: `make test-cluster` builds them, once")
    for home in PLANES.glob("*.*"):
        pid, _, started = home.name.partition(".")
        if str(start_time(int(pid))) != started:
            Cluster(home, tools.tools_folder()).stop()
    cluster = Cluster(PLANES / f"{os.getpid()}.{start_time(os.getpid())}", tools.tools_folder())
    try:
        cluster.start(nodes=0)
        with cluster.entered():
            made = Plane(cluster)
            made.install(crd())
        yield made
    finally:
        cluster.stop()


@pytest.fixture
def plane(whole_plane: Plane) -> Iterator[Plane]:
    """The control plane; the test is inside its network."""
    with whole_plane.cluster.entered():
        yield whole_plane


@pytest.fixture
def space(plane: Plane) -> Iterator[str]:
    """A namespace of the test's own."""
    with plane.namespace() as name:
        yield name


@pytest.fixture
def model(plane: Plane) -> Iterator[str]:
    """The URL of a small model, served inside the cluster's network."""
    with served(tiny()) as server:
        yield server.url


@pytest.fixture
def operators(plane: Plane, space: str, tmp_path: Path) -> Iterator[Operators]:
    """Makes operators of the test's namespace; whatever runs at the test's end is killed."""
    made: list[OperatorProcess] = []

    def make(kubeconfig: Path | None = None, **settings: str) -> OperatorProcess:
        log = tmp_path / f"operator-{len(made)}.log"
        own = {"NAMESPACES": space, "OPERATOR_NAMESPACE": space, "ALLOW_LOCAL_URLS": "true", **QUICK, **settings}
        made.append(OperatorProcess(kubeconfig or Path(f"{plane.cluster.home}/admin.kubeconfig"), log, **own))
        return made[-1]

    yield make
    for operator in made:
        operator.kill()


@pytest.fixture
def operator(operators: Operators) -> OperatorProcess:
    """A running operator of the test's namespace."""
    one = operators()
    one.start()
    return one


@pytest.fixture
def site(plane: Plane, space: str, model: str, operators: Operators) -> Iterator[Site]:
    """No nodes yet; a small model behind a URL."""
    operators(READ_NODES="true").start()
    with fake_nodes(plane) as nodes:
        yield Site(plane, space, model, nodes)
