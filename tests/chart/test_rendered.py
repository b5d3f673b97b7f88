"""What the chart renders: the snapshots, and what holds whatever the values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from decodepool_operator.definition.crd import crd
from decodepool_operator.shell import settings as settings_module
from decodepool_operator.shell.settings import Settings
from decodepool_sizing.manifest import parse_manifest

from tests.chart.rendering import CHART, RELEASE, SNAPSHOTS, VALUES, Helm, Objects, snapshot

pytestmark = pytest.mark.cluster

EACH_VALUES = pytest.mark.parametrize("values", sorted(VALUES.glob("*.yaml")), ids=lambda path: path.stem)
HELD_BY_HELM = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by"}


def pod_templates(objects: Objects) -> list[dict[str, Any]]:
    """The pod specs among rendered objects."""
    templates = [each["spec"]["template"]["spec"] for (kind, _), each in objects.items() if kind == "Deployment"]
    return templates + [each["spec"] for (kind, _), each in objects.items() if kind == "Pod"]


def operators_environment(objects: Objects) -> dict[str, str]:
    """What the operator is started with; fields of its pod are the release's namespace."""
    (deployment,) = [each for (kind, _), each in objects.items() if kind == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "decodepool-system") for each in container["env"]}


@EACH_VALUES
def test_manifests_are_as_they_were_reviewed(values: Path, helm: Helm) -> None:
    kept = (SNAPSHOTS / values.name).read_text()
    assert snapshot(helm, values) == kept, "run `python -m tests.chart.rendering` and look at the difference"


@EACH_VALUES
def test_every_object_tells_whose_it_is(values: Path, helm: Helm) -> None:
    objects = helm.objects("--values", str(values))
    bare = [key for key, each in objects.items() if not set(each["metadata"]["labels"]) >= HELD_BY_HELM]
    assert [key for key in bare if key[0] != "Pod"] == []


@EACH_VALUES
def test_every_pod_meets_the_restricted_standard_and_writes_nowhere(values: Path, helm: Helm) -> None:
    for spec in pod_templates(helm.objects("--values", str(values))):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
            assert security["capabilities"] == {"drop": ["ALL"]}


@EACH_VALUES
def test_an_operator_that_starts_hears_that_it_is_to_end(values: Path, helm: Helm) -> None:
    """As process 1 of its own namespace it is deaf to what it has no handler for yet."""
    (operator,) = (each for (kind, _), each in helm.objects("--values", str(values)).items() if kind == "Deployment")
    assert operator["spec"]["template"]["spec"]["shareProcessNamespace"] is True


@EACH_VALUES
def test_the_operator_understands_its_environment(values: Path, helm: Helm) -> None:
    settings = Settings.from_environment(operators_environment(helm.objects("--values", str(values))))
    given = yaml.safe_load(values.read_text())
    assert list(settings.namespaces) == given.get("watchNamespaces", [])
    assert bool(settings.webhook_service) == given.get("webhook", {}).get("enabled", True)
    assert settings.reads_nodes == given.get("rbac", {}).get("readNodes", True)


@EACH_VALUES
def test_every_setting_of_the_chart_is_one_of_the_operators(values: Path, helm: Helm) -> None:
    """A variable that nobody reads would be a value without an effect."""
    environment = operators_environment(helm.objects("--values", str(values)))
    given = {name.removeprefix("DECODEPOOL_") for name in environment if name.startswith("DECODEPOOL_")}
    read = set(re.findall(r'"([A-Z_]+)"', Path(str(settings_module.__file__)).read_text()))
    assert given <= read


def test_values_reach_the_operator(helm: Helm) -> None:
    names = ["--set", "fullnameOverride=mine", "--set", "workers.startupSeconds=77", "--set", "operator.logLevel=debug"]
    names += ["--set", "operator.allowLocalUrls=true"]
    objects = helm.objects(*names)
    settings = Settings.from_environment(operators_environment(objects))
    assert (settings.images.startup_seconds, settings.log_level, settings.allow_local_urls) == (77, "DEBUG", True)
    assert ("MutatingWebhookConfiguration", settings.webhook_configuration) in objects
    assert ("Lease", settings.lease) in objects
    assert ("Secret", settings.webhook_secret) in objects
    assert ("Service", settings.webhook_service) in objects


def test_there_is_one_operator_and_never_two(helm: Helm) -> None:
    spec = helm.objects()["Deployment", "decodepool-operator"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_definition_is_the_repositorys_and_stays_on_uninstall(helm: Helm) -> None:
    rendered = helm.objects()["CustomResourceDefinition", "decodepools.decodepool.dev"]
    assert rendered["spec"] == crd()["spec"]
    assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_definition_goes_with_the_chart_only_where_that_was_asked_for(helm: Helm) -> None:
    rendered = helm.objects("--set", "crds.keep=false")["CustomResourceDefinition", "decodepools.decodepool.dev"]
    assert "annotations" not in rendered["metadata"]
    assert not [key for key in helm.objects("--set", "crds.install=false") if key[0] == "CustomResourceDefinition"]


def test_the_webhook_asks_of_labelled_pods_alone(helm: Helm) -> None:
    (hook,) = helm.objects()["MutatingWebhookConfiguration", "decodepool-sidecar"]["webhooks"]
    assert hook["objectSelector"] == {"matchExpressions": [{"key": "decodepool.dev/sidecar-of", "operator": "Exists"}]}
    service = helm.objects()["Service", hook["clientConfig"]["service"]["name"]]
    assert hook["clientConfig"]["service"]["port"] in {port["port"] for port in service["spec"]["ports"]}
    assert "caBundle" not in hook["clientConfig"], "the operator's to write"


NAMESPACES = {
    "all": ("[]", {"decodepool-system", "team"}),
    "its own among others": ("[decodepool-system,team]", {"decodepool-system", "team"}),
    "its own alone": ("[decodepool-system]", {"decodepool-system"}),
    "another": ("[team]", {"team"}),
}


@pytest.mark.parametrize(("watched", "asked"), NAMESPACES.values(), ids=NAMESPACES)
def test_the_webhook_is_asked_wherever_pools_are_served(watched: str, asked: set[str], helm: Helm) -> None:
    objects = helm.objects("--set-json", f"watchNamespaces={json.dumps(yaml.safe_load(watched))}")
    (hook,) = objects["MutatingWebhookConfiguration", "decodepool-sidecar"]["webhooks"]
    wanted = hook.get("namespaceSelector", {}).get("matchExpressions", [])
    assert {name for name in ("decodepool-system", "team") if all(selects(each, name) for each in wanted)} == asked


def test_pools_are_scraped_by_whom_the_operator_is(helm: Helm) -> None:
    objects = helm.objects("--values", str(VALUES / "monitored.yaml"))
    own = objects["PodMonitor", "decodepool-operator"]
    of_pools = Settings.from_environment(operators_environment(objects)).scraping
    assert of_pools.labels.items() <= own["metadata"]["labels"].items()
    assert of_pools.labels == {"release": "prometheus"}
    assert [each["interval"] for each in own["spec"]["podMetricsEndpoints"]] == [f"{of_pools.interval_seconds}s"]


def selects(expression: dict[str, Any], namespace: str) -> bool:
    """Whether an expression selects a namespace, by the label that each has of its name."""
    assert expression["key"] == "kubernetes.io/metadata.name"
    return bool((namespace in expression["values"]) == (expression["operator"] == "In"))


@pytest.mark.parametrize("values", ["defaults", "namespaced"])
def test_what_the_operator_writes_beside_pools_is_the_charts_and_goes_with_it(values: str, helm: Helm) -> None:
    """Its certificate and its heartbeat: it may make these two again and no other, and uninstalling leaves neither."""
    objects = helm.objects("--values", str(VALUES / f"{values}.yaml"))
    environment = operators_environment(objects)
    leases = {name.rpartition("/")[::2] for kind, name in objects if kind == "Lease"}
    secrets = [name for kind, name in objects if kind == "Secret"]
    settings = Settings.from_environment(environment)
    places = settings.namespaces or ("",)
    assert leases == {(place, environment["DECODEPOOL_LEASE"]) for place in places}, "wherever it may come to beat"
    assert secrets == [environment["DECODEPOOL_WEBHOOK_SECRET"]]
    granted = [rule for (kind, _), each in objects.items() if kind in {"Role", "ClusterRole"} for rule in each["rules"]]
    creating = [rule for rule in granted if "create" in rule["verbs"] and {"leases", "secrets"} & {*rule["resources"]}]
    named = sorted({(*rule["resources"], *rule["resourceNames"]) for rule in creating})
    wanted = [("leases", environment["DECODEPOOL_LEASE"]), ("secrets", environment["DECODEPOOL_WEBHOOK_SECRET"])]
    assert named == wanted


def test_two_releases_stand_side_by_side(helm: Helm) -> None:
    """Objects of the cluster are named by the release."""
    of_cluster = {"ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration"}
    other = helm.run("template", "second", str(CHART), "--namespace", "other")
    names = {(each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(other) if each}
    assert not names & {key for key in helm.objects() if key[0] in of_cluster}


def rules(objects: Objects, kind: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = objects[kind, name]["rules"]
    return found


@EACH_VALUES
def test_rights_are_named_one_by_one(values: Path, helm: Helm) -> None:
    for (kind, name), each in helm.objects("--values", str(values)).items():
        if kind in {"Role", "ClusterRole"}:
            for rule in each["rules"]:
                granted = {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
                assert not granted & {"*", "escalate", "bind", "impersonate"}, name


def test_secrets_are_read_by_name_and_never_listed(helm: Helm) -> None:
    verbs = {verb for rule in rules(helm.objects(), "ClusterRole", "decodepool-operator")
             if "secrets" in rule["resources"] for verb in rule["verbs"]}  # fmt: skip
    assert verbs == {"get"}


def test_in_named_namespaces_nothing_of_a_pool_is_a_right_on_the_cluster(helm: Helm) -> None:
    objects = helm.objects("--values", str(VALUES / "namespaced.yaml"))
    of_cluster = {
        resource for rule in rules(objects, "ClusterRole", "team-pools-operator") for resource in rule["resources"]
    }
    assert of_cluster == {"mutatingwebhookconfigurations"}
    clusterwide = rules(helm.objects("--set", "fullnameOverride=team-pools"), "ClusterRole", "team-pools-operator")
    for team in ("team-a", "team-b"):
        granted = rules(objects, "Role", f"{team}/team-pools-operator")
        assert all(rule in clusterwide for rule in granted)


def notes_of(helm: Helm, *arguments: str) -> str:
    return helm.run("install", *RELEASE, "--dry-run=client", *arguments).partition("NOTES:")[2]


def pool_in(notes: str) -> dict[str, Any]:
    pool: dict[str, Any] = yaml.safe_load(notes.partition("apply -f -\n")[2].partition("  POOL")[0])
    return pool


def test_notes_of_a_private_registry_have_a_pool_that_can_pull(helm: Helm) -> None:
    notes = notes_of(helm, "--set", "images.pullSecrets[0].name=hub")
    assert "kubectl create secret docker-registry" in notes
    pool = parse_manifest(pool_in(notes))
    assert pool.spec.template is not None
    assert pool.spec.template.image_pull_secrets == [{"name": "hub"}]


def test_notes_show_the_next_command(helm: Helm) -> None:
    notes = notes_of(helm)
    assert "kubectl apply -f -" in notes
    assert "kubectl get decodepools" in notes
    assert "pullSecrets" not in notes
    pool = pool_in(notes)
    assert pool["kind"] == "DecodePool"
