"""Installing, upgrading and uninstalling against a real API server: the definition comes along, pools stay."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import ClusterFault
from decodepool_operator.crd import NAME

from tests.chart.rendering import CHART
from tests.sizing.manifest_cases import SMALLEST

pytestmark = pytest.mark.cluster

NAMESPACE = "decodepool-system"
KINDS = ("deployments", "services", "serviceaccounts", "roles", "rolebindings", "networkpolicies", "leases", "secrets",
         "clusterroles", "clusterrolebindings", "mutatingwebhookconfigurations")  # fmt: skip
DEFINITION = Path("files/decodepools.yaml")


@pytest.fixture
def server(control_plane: Cluster) -> Iterator[Cluster]:
    """The API server without anything of ours, before and after."""
    yield _emptied(control_plane)
    _emptied(control_plane)


def _emptied(server: Cluster) -> Cluster:
    for release in json.loads(server.run("helm", "list", "--all-namespaces", "--output=json")):
        server.run("helm", "uninstall", release["name"], "--namespace", release["namespace"])
    server.kubectl("delete", "crd", NAME, "--ignore-not-found")
    server.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
    deadline = time.monotonic() + 60
    while NAMESPACE in server.kubectl("get", "namespaces", "-o", "name"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return server


def helm(server: Cluster, verb: str, *arguments: str) -> str:
    return server.run("helm", verb, "decodepool", *arguments, "--namespace", NAMESPACE)


def install(server: Cluster, chart: Path = CHART, *arguments: str) -> str:
    return helm(server, "install", str(chart), "--create-namespace", *arguments)


def older_chart(folder: Path) -> Path:
    """The chart as of a release without `spec.suspend` and `status.endpoint`."""
    chart = folder / "decodepool"
    shutil.copytree(CHART, chart)
    definition = yaml.safe_load((chart / DEFINITION).read_text())
    whole = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del whole["spec"]["properties"]["suspend"], whole["status"]["properties"]["endpoint"]
    (chart / DEFINITION).write_text(yaml.safe_dump(definition))
    return chart


def pool(name: str = "smollm2", **spec: Any) -> str:
    return json.dumps({**SMALLEST, "metadata": {"name": name}, "spec": {**SMALLEST["spec"], **spec}})


def create(server: Cluster, manifest: str, *arguments: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(server.kubectl("create", "-o", "json", *arguments, "-f", "-", given=manifest))
    return made


def test_an_upgrade_brings_the_definition(server: Cluster, tmp_path: Path) -> None:
    install(server, older_chart(tmp_path))
    dropped = create(server, pool("old", suspend=True), "--validate=ignore")
    assert "suspend" not in dropped["spec"], "the older definition drops what it does not know"
    helm(server, "upgrade", str(CHART))
    assert create(server, pool("new", suspend=True))["spec"]["suspend"] is True
    server.kubectl("patch", "decodepool", "old", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    status = '{"status": {"endpoint": "http://old.default.svc"}}'
    server.kubectl("patch", "decodepool", "old", "--subresource=status", "--type=merge", "-p", status)
    seen = server.get("decodepool", "old")
    assert (seen["spec"]["suspend"], seen["status"]["endpoint"]) == (True, "http://old.default.svc")


def test_an_upgrade_to_the_same_changes_nothing(server: Cluster) -> None:
    install(server)
    kinds = "deployments,services,serviceaccounts,roles,rolebindings,networkpolicies"
    before = {each["metadata"]["name"]: each["metadata"].get("generation") for each in server.items(kinds, NAMESPACE)}
    definition = server.get("crd", NAME)["metadata"]["generation"]
    helm(server, "upgrade", str(CHART))
    after = {each["metadata"]["name"]: each["metadata"].get("generation") for each in server.items(kinds, NAMESPACE)}
    assert (after, server.get("crd", NAME)["metadata"]["generation"]) == (before, definition)


def test_an_upgrade_leaves_the_webhooks_certificate(server: Cluster) -> None:
    install(server)
    bundle = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCi0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K"
    patch = json.dumps([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}])
    server.kubectl("patch", "mutatingwebhookconfiguration", "decodepool-sidecar", "--type=json", "-p", patch)
    helm(server, "upgrade", str(CHART), "--set", "webhook.timeoutSeconds=7")
    (hook,) = server.get("mutatingwebhookconfiguration", "decodepool-sidecar")["webhooks"]
    assert (hook["timeoutSeconds"], hook["clientConfig"]["caBundle"]) == (7, bundle)


def test_uninstalling_leaves_the_pools_and_they_can_be_deleted_without_an_operator(server: Cluster) -> None:
    install(server)
    create(server, pool())
    helm(server, "uninstall")
    assert server.get("decodepool", "smollm2")["spec"]["contextTokens"] == 2048
    of_the_release = ("-A", "-o", "name", "-l", "app.kubernetes.io/instance=decodepool")
    left = server.kubectl("get", ",".join(KINDS), *of_the_release)
    assert left == ""
    server.kubectl("delete", "decodepool", "smollm2", "--timeout=60s")


def test_a_chart_installed_again_takes_its_definition_back(server: Cluster) -> None:
    install(server)
    create(server, pool())
    helm(server, "uninstall")
    install(server)
    assert server.get("decodepool", "smollm2")


def test_a_definition_applied_by_hand_is_taken_over_when_told_to(server: Cluster) -> None:
    server.kubectl("apply", "-f", str(CHART / DEFINITION))
    with pytest.raises(ClusterFault, match="invalid ownership metadata"):
        install(server)
    server.run("helm", "uninstall", "decodepool", "--namespace", NAMESPACE, "--ignore-not-found")
    install(server, CHART, "--take-ownership", "--force-conflicts")
    assert server.get("crd", NAME)["metadata"]["annotations"]["meta.helm.sh/release-name"] == "decodepool"


def test_uninstalling_takes_the_definition_where_that_was_asked_for(server: Cluster) -> None:
    install(server, CHART, "--set", "crds.keep=false")
    helm(server, "uninstall")
    server.kubectl("wait", "--for=delete", f"crd/{NAME}", "--timeout=60s")


def test_a_namespace_with_a_pool_in_it_can_be_deleted_without_an_operator(server: Cluster) -> None:
    install(server, CHART, "--set", "operator.replicas=0")
    server.kubectl("create", "namespace", "brief")
    create(server, pool(), "-n", "brief")
    server.kubectl("delete", "namespace", "brief", "--timeout=60s")


ASKED = {
    "make a Deployment": (["create", "deployments"], True, True),
    "patch a pool's status": (["patch", "decodepools", "--subresource=status"], True, True),
    "scale a pool": (["patch", "decodepools", "--subresource=scale"], True, True),
    "write a pool's spec": (["patch", "decodepools"], False, False),
    "delete a pool": (["delete", "decodepools"], False, False),
    "read a secret": (["get", "secrets"], True, True),
    "list secrets": (["list", "secrets"], False, False),
    "list nodes": (["list", "nodes"], True, False),
    "run a command in a pod": (["create", "pods", "--subresource=exec"], False, False),
    "make a ClusterRole": (["create", "clusterroles"], False, False),
}


@pytest.fixture(scope="module")
def installed_twice(control_plane: Cluster) -> Iterator[Cluster]:
    """One release for the whole cluster, and one for the namespace `team` alone."""
    server = _emptied(control_plane)
    server.kubectl("create", "namespace", "team")
    install(server)
    server.run("helm", "install", "second", str(CHART), "--namespace", "second", "--create-namespace",
               "--set", "crds.install=false,watchNamespaces={team},rbac.readNodes=false")  # fmt: skip
    yield server
    server.kubectl("delete", "namespace", "team", "second", "--wait=false")
    _emptied(server)


@pytest.mark.parametrize("name", ASKED)
def test_the_operator_may_do_what_it_does_and_no_more(name: str, installed_twice: Cluster) -> None:
    words, everywhere, in_its_own = ASKED[name]
    first = f"system:serviceaccount:{NAMESPACE}:decodepool-operator"
    second = "system:serviceaccount:second:second-decodepool-operator"
    assert may(installed_twice, first, words, "default") is everywhere
    assert may(installed_twice, second, words, "team") is in_its_own
    assert may(installed_twice, second, words, "default") is False


def may(server: Cluster, account: str, words: list[str], namespace: str) -> bool:
    try:
        return server.kubectl("auth", "can-i", *words, "--as", account, "-n", namespace, "-q") == ""
    except ClusterFault:
        return False
