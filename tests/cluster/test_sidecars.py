"""Decode workers beside real applications: the example as it is written, a Job that ends, certificates that change."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from decodepool_cluster import images, product
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import wait_until
from decodepool_operator.webhook.certificates import renewed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]

Object = dict[str, Any]
EXAMPLE = Path(__file__).parents[2] / "examples" / "sidecar.yaml"
MODEL = "/var/lib/decodepool/models/SmolLM2-135M-Instruct.Q4_1.gguf"
CERTIFICATES = ("secret", "decodepool-operator-cert", product.SYSTEM)
RENEWED_SECONDS = 90
"""The operator looks at its certificates every minute."""
ONE_ANSWER = """
import json, urllib.request
question = {"role": "user", "content": "What is the capital of France?"}
body = {"model": "beside", "messages": [question], "max_tokens": 16, "temperature": 0}
request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", json.dumps(body).encode(),
                                 {"content-type": "application/json"})
with urllib.request.urlopen(request) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"], flush=True)
"""


def example() -> tuple[Object, Object]:
    """The example's pool and application, with what the local cluster has in place of what only the world has."""
    pool, app = yaml.safe_load_all(EXAMPLE.read_text())
    pool["spec"]["model"]["source"] = {"hostPath": {"path": MODEL}}
    (container,) = app["spec"]["template"]["spec"]["containers"]
    assert container["command"][0] == "python"
    container.update(image=images.name("operator"), imagePullPolicy="Never")
    return pool, app


def job() -> Object:
    """The example's application as work that ends."""
    _, app = example()
    template = app["spec"]["template"]
    template["spec"]["restartPolicy"] = "Never"
    template["spec"]["containers"][0]["args"] = [ONE_ANSWER]
    metadata = {"name": "once"}
    spec = {"backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def dry_run(cluster: Cluster, namespace: str) -> Object:
    """What the API server would make of a pod that asks for a sidecar."""
    template = job()["spec"]["template"]
    metadata = {"name": "dry", "labels": template["metadata"]["labels"]}
    given = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    told = cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-", given=given)
    made: Object = json.loads(told)
    return made


@pytest.fixture(scope="module")
def old_certificates(cluster: Cluster) -> dict[str, str]:
    """Certificates of 70 days ago, of another authority, put in the place of those of the running operator."""
    host = f"decodepool-operator.{product.SYSTEM}.svc"
    data = renewed(None, host, datetime.now(UTC) - timedelta(days=70)).to_secret_data()
    patch = json.dumps({"data": data})
    cluster.kubectl("patch", *CERTIFICATES[:2], "-n", product.SYSTEM, "--type=merge", "-p", patch)
    return data


@pytest.fixture(scope="module")
def beside(cluster: Cluster, old_certificates: dict[str, str]) -> Iterator[str]:
    """A namespace with the example's pool, planned. What is tested first does not wait for new certificates."""
    name = "beside"
    cluster.kubectl("create", "namespace", name)
    cluster.apply(example()[0], namespace=name)
    cluster.kubectl("wait", "-n", name, "--for=condition=CapacityPlanned", "dpool/beside", "--timeout=120s")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def sidecars(cluster: Cluster, namespace: str) -> Object:
    found: Object = cluster.get("dpool", "beside", namespace)["status"].get("sidecars", {})
    return found


def test_the_example_answers_in_its_pod_and_is_counted_and_goes_with_it(cluster: Cluster, beside: str) -> None:
    cluster.apply(example()[1], namespace=beside)
    said = ("logs", "-n", beside, "deployment/app", "-c", "app")
    wait_until(lambda: cluster.kubectl(*said).strip(), "the application to be answered", 180)
    assert "Traceback" not in cluster.kubectl(*said)
    wanted = {"count": 1, "ready": 1, "capacity": 4, "active": 0}
    wait_until(lambda: sidecars(cluster, beside) | {"active": 0} == wanted, "the sidecar to be counted", 60)
    status = cluster.get("dpool", "beside", beside)["status"]
    assert (status["replicas"], status["workers"]) == (0, "0/0")
    slices = cluster.items("endpointslices", beside, "kubernetes.io/service-name=beside-workers")
    assert not [each for each in slices if each.get("endpoints")], "it serves its own pod alone"
    cluster.kubectl("scale", "-n", beside, "deployment/app", "--replicas=0")
    wait_until(lambda: not sidecars(cluster, beside).get("count"), "its end in the status", 60)
    wait_until(lambda: not cluster.items("pods", beside, "app=app"), "its pod to be gone", 60)


def test_a_job_with_a_sidecar_completes(cluster: Cluster, beside: str) -> None:
    cluster.apply(job(), namespace=beside)
    cluster.kubectl("wait", "-n", beside, "--for=condition=Complete", "job/once", "--timeout=180s", seconds=200)
    assert "Paris" in cluster.kubectl("logs", "-n", beside, "job/once", "-c", "app")
    (pod,) = cluster.items("pods", beside, "batch.kubernetes.io/job-name=once")
    assert pod["status"]["phase"] == "Succeeded"
    (worker,) = pod["status"]["initContainerStatuses"]
    assert worker["restartCount"] == 0
    wait_until(lambda: not sidecars(cluster, beside).get("count"), "its end in the status", 60)


@pytest.mark.soak
def test_a_certificate_that_ends_soon_is_renewed_and_trusted_without_a_restart(
    cluster: Cluster, beside: str, old_certificates: dict[str, str]
) -> None:
    def data() -> dict[str, str]:
        found: dict[str, str] = cluster.get(*CERTIFICATES)["data"]
        return found

    def bundle() -> str:
        (hook,) = cluster.get("mutatingwebhookconfiguration", "decodepool-sidecar")["webhooks"]
        return str(hook["clientConfig"]["caBundle"])

    wait_until(lambda: data()["tls.crt"] != old_certificates["tls.crt"], "a new certificate", RENEWED_SECONDS)
    assert data()["ca.crt"] == old_certificates["ca.crt"], "the authority is good for years"
    wait_until(lambda: bundle() == old_certificates["ca.crt"], "the API server to be told")
    server = x509.load_pem_x509_certificate(base64.b64decode(data()["tls.crt"]))
    assert server.not_valid_after_utc - datetime.now(UTC) > timedelta(days=60)

    def admitted() -> bool:
        return [each["name"] for each in dry_run(cluster, beside)["spec"]["initContainers"]] == ["decodepool"]

    wait_until(admitted, "a pod to be given its sidecar by the new certificates", 10)


def test_where_the_chart_says_ignore_a_pod_is_made_without_its_sidecar_while_the_operator_is_away(
    cluster: Cluster, beside: str
) -> None:
    product.install(cluster, "--set", "webhook.failurePolicy=Ignore")
    operator = ("-n", product.SYSTEM, "deployment/decodepool-operator")
    cluster.kubectl("scale", *operator, "--replicas=0")
    cluster.kubectl("wait", "-n", product.SYSTEM, "--for=delete", "pod", "--all", "--timeout=60s")
    try:
        assert "initContainers" not in dry_run(cluster, beside)["spec"]
    finally:
        cluster.kubectl("scale", *operator, "--replicas=1")
        product.install(cluster, "--set", "webhook.failurePolicy=Fail")
    wait_until(lambda: "initContainers" in dry_run(cluster, beside)["spec"], "sidecars as before", 60)
