"""Pool, namespace and chart are taken away in any order: nothing waits for anybody, nothing is left, no GPU is held."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from decodepool_cluster.linux import wait_until
from decodepool_cluster.product import CHART

from tests.cluster.shell.conftest import Operators
from tests.cluster.shell.gpu_site import GPU, Site, discovered
from tests.cluster.shell.plane import OperatorProcess, Plane, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

OURS = "app.kubernetes.io/name=decodepool"
OF_THE_CLUSTER = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations"
IN_NAMESPACES = (
    "pods,deployments,replicasets,services,endpointslices,serviceaccounts,roles,rolebindings,pdb,jobs,leases"
)
GONE_SECONDS = 60


@dataclass(frozen=True)
class Chart:
    """The chart's release. Its operator runs beside the cluster, and ends with it."""

    plane: Plane
    operator: OperatorProcess
    namespace: str

    def install(self) -> None:
        """Install it, with its pods at no node: the process is its operator."""
        given = ["--namespace", self.namespace, "--create-namespace", "--set", "crds.install=false,operator.replicas=0"]
        self.plane.cluster.run("helm", "install", "decodepool", str(CHART), *given)

    def uninstall(self) -> None:
        """Take it away, and with it the operator."""
        self.operator.kill()
        self.plane.cluster.run("helm", "uninstall", "decodepool", "--namespace", self.namespace)

    def leftovers(self) -> str:
        """What is left of it outside of namespaces."""
        return self.plane.cluster.kubectl("get", OF_THE_CLUSTER, "-l", OURS, "-o", "name")


@pytest.fixture
def chart(site: Site, operators: Operators) -> Iterator[Chart]:
    """A chart to be installed, and the operator of the whole cluster that it would bring."""
    operator = operators(NAMESPACES="", READ_NODES="true", LEASE="removal")
    operator.start()
    cluster = site.plane.cluster
    with site.plane.namespace() as name:
        yield Chart(site.plane, operator, name)
        for release in json.loads(cluster.run("helm", "list", "--all-namespaces", "--output=json")):
            cluster.run("helm", "uninstall", release["name"], "--namespace", release["namespace"])


def without_namespace(plane: Plane, name: str) -> bool:
    return not plane.cluster.kubectl("get", "namespace", name, "--ignore-not-found", "-o", "name")


def delete_pool(site: Site) -> None:
    """As a person does; a namespace that went before has taken it along."""
    site.plane.cluster.kubectl("delete", "dpool", "chat", "-n", site.space, "--ignore-not-found", "--timeout=60s")
    until(lambda: not site.plane.children(site.space), "the pool's children to go", GONE_SECONDS)
    until(lambda: not site.holders(), "its GPUs to be free", GONE_SECONDS)


def delete_namespace(site: Site) -> None:
    site.plane.cluster.kubectl("delete", "namespace", site.space, f"--timeout={GONE_SECONDS}s")


Step = Callable[[Site], None]
PAIRS: tuple[tuple[Step, Step], ...] = ((delete_pool, delete_namespace), (delete_namespace, delete_pool))


@pytest.mark.parametrize("turn", [0, 1, 2], ids=["chart first", "chart between", "chart last"])
def test_nothing_is_left_whatever_goes_first(turn: int, site: Site, chart: Chart) -> None:
    """A03, deletion without an operator: no order of three deletions waits for it, or leaves a GPU held."""
    site.nodes.add("only", {GPU: 2}, discovered("NVIDIA-A10", 23028))
    chart.install()
    assert chart.leftovers()
    with site.plane.namespace() as first, site.plane.namespace() as second:
        sites = [replace(site, space=name) for name in (first, second)]
        for each in sites:
            each.make("chat")
        for each in sites:
            each.wait_ready("chat")
            assert each.holders()
        for step in range(3):
            if step == turn:
                chart.uninstall()
            else:
                for each, pair in zip(sites, PAIRS, strict=True):
                    pair[step - (step > turn)](each)
        for each in sites:
            assert without_namespace(site.plane, each.space)
            assert not site.plane.cluster.kubectl("get", IN_NAMESPACES, "-n", each.space, "-o", "name")
    assert not chart.leftovers()


def test_operator_and_pool_go_with_the_namespace_that_has_both(site: Site, chart: Chart) -> None:
    """A03, deletion without an operator: they are in one namespace."""
    site.nodes.add("only", {GPU: 1}, discovered("NVIDIA-A10", 23028))
    together = replace(site, space=chart.namespace)
    chart.install()
    together.make("chat")
    together.wait_ready("chat")
    delete_namespace(together)
    assert not together.holders()
    wait_until(lambda: chart.operator.probe("/healthz") == 200, "an operator elsewhere to bear it")
    assert chart.leftovers(), "what is the cluster's stays"
    chart.install()
    chart.uninstall()
    assert not chart.leftovers(), "and is taken over by installing again"
