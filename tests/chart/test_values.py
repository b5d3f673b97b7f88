"""Values: each mistake is refused and names its key; what is Kubernetes' own stays open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, Helm, Refused

pytestmark = pytest.mark.cluster

MISTAKES = {
    "a wrong key at the root": (["--set", "operater.replicas=1"], "operater"),
    "a wrong key one level down": (["--set", "operator.replica=1"], "replica"),
    "a wrong key two levels down": (["--set", "monitoring.podMonitor.enable=true"], "enable"),
    "a wrong key of an image": (["--set", "images.worker.tags=x"], "tags"),
    "a number as text": (["--set-string", "operator.replicas=1"], "operator/replicas"),
    "a number as text two levels down": (["--set-string", "webhook.timeoutSeconds=5"], "webhook/timeoutSeconds"),
    "a negative count": (["--set", "operator.replicas=-1"], "operator/replicas"),
    "two operators": (["--set", "operator.replicas=2"], "operator/replicas"),
    "a time of none": (["--set", "workers.startupSeconds=0"], "workers/startupSeconds"),
    "an unknown pull policy": (["--set", "images.pullPolicy=Sometimes"], "images/pullPolicy"),
    "an unknown failure policy": (["--set", "webhook.failurePolicy=Maybe"], "webhook/failurePolicy"),
    "an unknown log level": (["--set", "operator.logLevel=loud"], "operator/logLevel"),
    "a yes for a boolean": (["--set-string", "crds.keep=yes"], "crds/keep"),
    "a namespace in capitals": (["--set", "watchNamespaces={Team}"], "watchNamespaces/0"),
    "one namespace as text": (["--set", "watchNamespaces=team"], "watchNamespaces"),
    "a digest that is none": (["--set", "images.worker.digest=sha256:1"], "images/worker/digest"),
    "a tag with a space": (["--set", "images.tag=a b"], "images/tag"),
    "no tag": (["--set", "images.tag="], "images/tag"),
    "a number for a label": (["--set", "operator.podLabels.a=1"], "operator/podLabels/a"),
    "an account of nobody": (["--set", "serviceAccount.create=false"], "serviceAccount"),
    "a name too long": (["--set", f"fullnameOverride={'a' * 41}"], "fullnameOverride"),
    "a value taken away": (["--set", "images.registry=null"], "registry"),
    "a list for a mapping": (["--set-json", "operator=[]"], "operator"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_and_names_its_key(name: str, helm: Helm) -> None:
    arguments, key = MISTAKES[name]
    with pytest.raises(Refused) as caught:
        helm.render(*arguments)
    told = str(caught.value)
    assert key in told.replace(".", "/")
    assert "values don't meet the specifications of the schema" in told


OPEN = {
    "a parent chart's global": "global.imageRegistry=x",
    "a node selector": "operator.nodeSelector.disk=ssd",
    "resources": "operator.resources.limits.example\\.com/fpga=1",
    "tolerations": "operator.tolerations[0].key=a,operator.tolerations[0].operator=Exists",
    "affinity": "operator.affinity.nodeAffinity.anything.at.all=1",
    "an annotation": "serviceAccount.annotations.eks\\.amazonaws\\.com/role-arn=x",
    "a variable": "operator.extraEnv[0].name=A,operator.extraEnv[0].value=b",
    "pull secrets": "images.pullSecrets[0].name=hub",
}


@pytest.mark.parametrize("name", OPEN)
def test_what_is_kubernetes_own_is_taken(name: str, helm: Helm) -> None:
    assert helm.render("--set", OPEN[name])


def test_the_schema_is_strict_wherever_the_defaults_have_keys() -> None:
    """A value that has no place in the schema would be refused; a place that is open would take any."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    open_places = {"operator.resources", "operator.affinity"}
    assert set(_loose(schema, defaults, schema["definitions"], "")) == open_places


def _loose(node: dict[str, Any], value: dict[str, Any], definitions: dict[str, Any], path: str) -> list[str]:
    """Mappings of the defaults for which the schema takes any key with any value."""
    found = [] if "additionalProperties" in node else [path]
    for name, child in value.items():
        rules = node.get("properties", {}).get(name, {})
        rules = definitions[rules["$ref"].rpartition("/")[2]] if "$ref" in rules else rules
        if isinstance(child, dict):
            found += _loose(rules, child, definitions, f"{path}.{name}".lstrip(".")) if rules else []
    return found


def test_helm_finds_nothing_to_complain_of(helm: Helm, tmp_path: Path) -> None:
    told = helm.run("lint", "--strict", str(CHART))
    assert "0 chart(s) failed" in told
    assert "[WARNING]" not in told
