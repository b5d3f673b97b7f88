"""Installing, upgrading and uninstalling against a real API server: the definition comes along, pools stay."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import ClusterFault
from decodepool_operator.definition.crd import NAME

from tests.chart.rendering import CHART, Helm
from tests.sizing.manifest_cases import SMALLEST

pytestmark = pytest.mark.cluster

KINDS = ("deployments", "services", "serviceaccounts", "roles", "rolebindings", "networkpolicies", "leases", "secrets")
KINDS_OF_THE_CLUSTER = ("clusterroles", "clusterrolebindings", "mutatingwebhookconfigurations")
DEFINITION = Path("files/decodepools.yaml")


@dataclass(frozen=True)
class Release:
    """The chart on an API server, or about to be: in a namespace of its own."""

    server: Cluster
    namespace: str

    def helm(self, verb: str, *arguments: str) -> str:
        """Run a helm command of this release."""
        return self.server.run("helm", verb, "decodepool", *arguments, "--namespace", self.namespace)

    def install(self, *arguments: str, chart: Path = CHART) -> str:
        """Install it."""
        return self.helm("install", str(chart), "--create-namespace", *arguments)

    def generations(self) -> dict[str, int | None]:
        """The generation of each of its objects that has one."""
        found = [self.server.get("crd", NAME), *self.server.items(",".join(KINDS), self.namespace)]
        return {
            f"{each['kind']} {each['metadata']['name']}": each["metadata"].get("generation")
            for each in found
            if each["kind"] != "Secret"  # where helm keeps its releases
        }


@pytest.fixture
def release(control_plane: Cluster) -> Iterator[Release]:
    """The API server without anything of ours, before and after."""
    _remove_ours(control_plane)
    made = Release(control_plane, f"system-{time.monotonic_ns():x}")
    yield made
    _remove_ours(control_plane)
    control_plane.kubectl("delete", "namespace", made.namespace, "--ignore-not-found", "--wait=false")


def _remove_ours(server: Cluster) -> None:
    for release in json.loads(server.run("helm", "list", "--all-namespaces", "--output=json")):
        server.run("helm", "uninstall", release["name"], "--namespace", release["namespace"])
    server.kubectl("delete", "crd", NAME, "--ignore-not-found")


def older_chart(folder: Path) -> Path:
    """The chart as of a release without `spec.suspend` and `status.endpoint`."""
    chart = folder / "decodepool"
    shutil.copytree(CHART, chart)
    definition = yaml.safe_load((chart / DEFINITION).read_text())
    whole = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del whole["spec"]["properties"]["suspend"], whole["status"]["properties"]["endpoint"]
    (chart / DEFINITION).write_text(yaml.safe_dump(definition))
    return chart


def create(server: Cluster, name: str, *arguments: str, **spec: Any) -> dict[str, Any]:
    """Create a pool."""
    given = json.dumps({**SMALLEST, "metadata": {"name": name}, "spec": {**SMALLEST["spec"], **spec}})
    made: dict[str, Any] = json.loads(server.kubectl("create", "-o", "json", *arguments, "-f", "-", given=given))
    return made


def test_an_upgrade_brings_the_definition(release: Release, tmp_path: Path) -> None:
    """A09, an upgrade leaves the old CRD, and new fields vanish."""
    server = release.server
    release.install(chart=older_chart(tmp_path))
    dropped = create(server, "old", "--validate=ignore", suspend=True)
    assert "suspend" not in dropped["spec"], "the older definition drops what it does not know"
    release.helm("upgrade", str(CHART))
    assert create(server, "new", suspend=True)["spec"]["suspend"] is True
    server.kubectl("patch", "decodepool", "old", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    status = '{"status": {"endpoint": "http://old.default.svc"}}'
    server.kubectl("patch", "decodepool", "old", "--subresource=status", "--type=merge", "-p", status)
    seen = server.get("decodepool", "old")
    assert (seen["spec"]["suspend"], seen["status"]["endpoint"]) == (True, "http://old.default.svc")


def test_an_upgrade_as_the_guide_has_it_keeps_values_and_changes_nothing_else(release: Release) -> None:
    release.install("--set", "webhook.timeoutSeconds=7")
    before = release.generations()
    release.helm("upgrade", str(CHART), "--reset-then-reuse-values")
    assert release.generations() == before
    (hook,) = release.server.get("mutatingwebhookconfiguration", "decodepool-sidecar")["webhooks"]
    assert hook["timeoutSeconds"] == 7


def test_an_upgrade_leaves_the_certificate_to_the_operator(release: Release) -> None:
    server = release.server
    release.install()
    bundle = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCi0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K"
    written = {"caBundle": bundle, "service/path": "/inject/x"}
    root = "/webhooks/0/clientConfig"
    patch = json.dumps([{"op": "add", "path": f"{root}/{key}", "value": value} for key, value in written.items()])
    server.kubectl("patch", "mutatingwebhookconfiguration", "decodepool-sidecar", "--type=json", "-p", patch)
    secret = json.dumps({"data": {"tls.crt": bundle}})
    in_its_own = ("-n", release.namespace)
    server.kubectl("patch", "secret", "decodepool-operator-cert", *in_its_own, "--type=merge", "-p", secret)
    release.helm("upgrade", str(CHART), "--set", "webhook.timeoutSeconds=7")
    (hook,) = server.get("mutatingwebhookconfiguration", "decodepool-sidecar")["webhooks"]
    assert (hook["timeoutSeconds"], hook["clientConfig"]["caBundle"]) == (7, bundle)
    assert hook["clientConfig"]["service"]["path"] == "/inject/x"
    assert server.get("secret", "decodepool-operator-cert", release.namespace)["data"] == {"tls.crt": bundle}


def test_uninstalling_leaves_the_pools_and_nothing_else(release: Release) -> None:
    """A09, an uninstall that takes pools along unasked."""
    server = release.server
    release.install()
    create(server, "smollm2")
    release.helm("uninstall")
    assert server.get("decodepool", "smollm2")["spec"]["contextTokens"] == 2048
    kinds = ",".join((*KINDS, *KINDS_OF_THE_CLUSTER))
    ours = ("-A", "-o", "name", "-l", "app.kubernetes.io/instance=decodepool")
    assert server.kubectl("get", kinds, *ours) == ""


def test_pools_can_be_deleted_when_the_chart_is_gone(release: Release) -> None:
    """A03, deletion without an operator."""
    release.install()
    create(release.server, "smollm2")
    release.helm("uninstall")
    release.server.kubectl("delete", "decodepool", "smollm2", "--timeout=60s")


def test_a_chart_installed_again_takes_its_definition_back(release: Release) -> None:
    release.install()
    create(release.server, "smollm2")
    release.helm("uninstall")
    release.install()
    assert release.server.get("decodepool", "smollm2")


def test_a_definition_applied_by_hand_is_taken_over_when_told_to(release: Release) -> None:
    release.server.kubectl("apply", "-f", str(CHART / DEFINITION))
    with pytest.raises(ClusterFault, match="invalid ownership metadata"):
        release.install()
    release.helm("uninstall", "--ignore-not-found")
    release.install("--take-ownership", "--force-conflicts")
    annotations = release.server.get("crd", NAME)["metadata"]["annotations"]
    assert annotations["meta.helm.sh/release-name"] == "decodepool"


def test_uninstalling_takes_the_definition_where_that_was_asked_for(release: Release) -> None:
    release.install("--set", "crds.keep=false")
    release.helm("uninstall")
    release.server.kubectl("wait", "--for=delete", f"crd/{NAME}", "--timeout=60s")


def test_a_namespace_with_a_pool_in_it_can_be_deleted_without_an_operator(release: Release) -> None:
    """A03, deletion without an operator."""
    release.install("--set", "operator.replicas=0")
    release.server.kubectl("create", "namespace", "brief")
    create(release.server, "smollm2", "-n", "brief")
    release.server.kubectl("delete", "namespace", "brief", "--timeout=60s")


def test_its_pods_are_admitted_where_only_restricted_ones_are(release: Release, helm: Helm) -> None:
    server, namespace = release.server, release.namespace
    server.kubectl("create", "namespace", namespace)
    server.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    release.install()
    deadline = time.monotonic() + 60
    while not server.items("pods", namespace):
        assert time.monotonic() < deadline, server.kubectl("get", "events", "-n", namespace)
        time.sleep(0.2)
    test_pod = helm.objects()["Pod", "decodepool-operator-test"]
    test_pod["metadata"]["namespace"] = namespace
    server.kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(test_pod))


BESIDE = "crds.install=false,fullnameOverride=for-team"
OVERLAPS = {
    "everything twice": ("", "", "every namespace"),
    "everything, under other names": ("", BESIDE, "every namespace"),
    "a namespace beside everything": ("", f"watchNamespaces={{team}},{BESIDE}", "team"),
    "everything beside a namespace": ("watchNamespaces={team}", BESIDE, "team"),
    "a namespace of two": ("watchNamespaces={team,other}", f"watchNamespaces={{other}},{BESIDE}", "other"),
}
"""What the first release serves, what the second would, and what both would."""


@pytest.fixture
def teams(control_plane: Cluster) -> Iterator[None]:
    """Two namespaces to be served, and one for a second release."""
    for name in ("team", "other", "second"):
        control_plane.kubectl("create", "namespace", name)
    yield
    control_plane.kubectl("delete", "namespace", "team", "other", "second", "--timeout=60s")


@pytest.mark.usefixtures("teams")
@pytest.mark.parametrize(("first", "second", "both"), OVERLAPS.values(), ids=OVERLAPS)
def test_no_pool_gets_two_operators(release: Release, first: str, second: str, both: str) -> None:
    release.install("--set", first)
    words = f"the release {release.namespace}/decodepool already has an operator that serves {both}, and no pool may"
    with pytest.raises(ClusterFault, match=words):
        Release(release.server, "second").install("--set", second)
    release.helm("upgrade", str(CHART), "--reuse-values")


@pytest.mark.usefixtures("teams")
def test_releases_for_different_namespaces_stand_side_by_side(release: Release) -> None:
    release.install("--set", "watchNamespaces={team}")
    Release(release.server, "second").install("--set", f"watchNamespaces={{other}},{BESIDE}")
    with pytest.raises(ClusterFault, match=f"the release {release.namespace}/decodepool already has"):
        Release(release.server, "second").helm(
            "upgrade", str(CHART), "--set", f"watchNamespaces={{other,team}},{BESIDE}"
        )


LIKE_AN_OPERATOR = {
    "app.kubernetes.io/name": "decodepool",
    "app.kubernetes.io/component": "operator",
    "app.kubernetes.io/instance": "fake",
}


@pytest.mark.usefixtures("teams")
def test_whoever_may_make_a_deployment_keeps_no_release_from_its_upgrade(release: Release) -> None:
    release.install()
    release.server.kubectl("create", "deployment", "fake", "--image=x", "--replicas=0", "-n", "team")
    labels = [f"{name}={value}" for name, value in LIKE_AN_OPERATOR.items()]
    release.server.kubectl("label", "deployment", "fake", "-n", "team", "--overwrite", *labels)
    release.helm("upgrade", str(CHART), "--reuse-values")


ASKED = {
    "make a Deployment": (["create", "deployments"], True, True),
    "patch a pool's status": (["patch", "decodepools", "--subresource=status"], True, True),
    "scale a pool": (["patch", "decodepools", "--subresource=scale"], True, True),
    "write a pool's spec": (["patch", "decodepools"], False, False),
    "delete a pool": (["delete", "decodepools"], False, False),
    "read a secret": (["get", "secrets"], True, True),
    "list secrets": (["list", "secrets"], False, False),
    "make a secret": (["create", "secrets"], False, False),
    "list nodes": (["list", "nodes"], True, False),
    "run a command in a pod": (["create", "pods", "--subresource=exec"], False, False),
    "make a ClusterRole": (["create", "clusterroles"], False, False),
}
"""A request; whether an operator of the whole cluster may, and one of a namespace in that namespace."""


@pytest.fixture(scope="module")
def installed_twice(control_plane: Cluster) -> Iterator[Cluster]:
    """One release for the whole cluster, and one for the namespace `team` alone."""
    _remove_ours(control_plane)
    control_plane.kubectl("create", "namespace", "team")
    Release(control_plane, "everywhere").install()
    only_team = f"watchNamespaces={{team}},rbac.readNodes=false,refuseOverlap=false,{BESIDE}"
    Release(control_plane, "in-team").install("--set", only_team)
    yield control_plane
    _remove_ours(control_plane)
    control_plane.kubectl("delete", "namespace", "team", "everywhere", "in-team", "--wait=false")


@pytest.mark.parametrize("name", ASKED)
def test_the_operator_may_do_what_it_does_and_no_more(name: str, installed_twice: Cluster) -> None:
    words, everywhere, in_its_own = ASKED[name]
    first = "system:serviceaccount:everywhere:decodepool-operator"
    second = "system:serviceaccount:in-team:for-team-operator"
    assert may(installed_twice, first, words, "default") is everywhere
    assert may(installed_twice, second, words, "team") is in_its_own
    assert may(installed_twice, second, words, "default") is False


def may(server: Cluster, account: str, words: list[str], namespace: str) -> bool:
    try:
        return server.kubectl("auth", "can-i", *words, "--as", account, "-n", namespace, "-q") == ""
    except ClusterFault:
        return False
