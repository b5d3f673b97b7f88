"""The webhook as the API server calls it: at the path that it alone was told, by the certificate that it was given."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from decodepool_cluster import addresses
from decodepool_cluster.linux import ClusterFault
from decodepool_cluster.product import CHART
from decodepool_operator.api.kinds import MUTATING_WEBHOOKS

from tests.cluster.shell.conftest import Operators
from tests.cluster.shell.plane import Object, Plane, free_port, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SERVICE, CONFIGURATION = "hook-operator", "hook-sidecar"
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "app", "labels": {"decodepool.dev/sidecar-of": "chat"}},
    "spec": {"containers": [{"name": "app", "image": "x"}]},
}


def of_the_chart(plane: Plane, space: str, port: int) -> list[Object]:
    """What the chart has of the webhook, its Service without pods and leading to a process beside the cluster."""
    values = f"fullnameOverride=hook,watchNamespaces={{{space}}}"
    rendered = plane.cluster.run("helm", "template", "hook", str(CHART), "--namespace", space, "--set", values)
    kept = [
        each for each in yaml.safe_load_all(rendered) if each and each["kind"] in (MUTATING_WEBHOOKS.name, "Secret")
    ]
    metadata = {"name": SERVICE, "namespace": space}
    ports = {"name": "webhook", "port": 443, "targetPort": port}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [ports]}}
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [addresses.CONTROL_PLANE], "conditions": {"ready": True}}],
        "ports": [{"name": "webhook", "port": port, "protocol": "TCP"}],
    }
    return [*kept, service, slice_]


@pytest.fixture
def port(plane: Plane, space: str, operators: Operators) -> Iterator[int]:
    """The port of an operator whose webhook the API server knows of."""
    made = free_port()
    plane.cluster.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(of_the_chart(plane, space, made)))
    given = {"WEBHOOK_SERVICE": SERVICE, "WEBHOOK_CONFIGURATION": CONFIGURATION, "WEBHOOK_PORT": str(made)}
    operators(**given).start()
    yield made
    plane.delete(MUTATING_WEBHOOKS, None, CONFIGURATION)


def post(port: int, path: str, review: Any) -> int:
    """Post a review as any pod could; return the status."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"https://{addresses.CONTROL_PLANE}:{port}{path}"
    try:
        with urllib.request.urlopen(url, json.dumps(review).encode(), timeout=10, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


def test_the_api_server_gets_a_sidecar_and_a_stranger_nothing(plane: Plane, space: str, model: str, port: int) -> None:
    plane.make(space, "chat", model, replicas=0)
    until(lambda: plane.condition(space, "chat", "CapacityPlanned").get("status") == "True", "the pool to be planned")
    made: Object = {}

    def is_made() -> bool:
        try:
            told = plane.cluster.kubectl("create", "-n", space, "-o", "json", "-f", "-", given=json.dumps(POD))
        except ClusterFault:
            return False
        made.update(json.loads(told))
        return True

    until(is_made, "the webhook to be trusted", 60)
    assert [each["name"] for each in made["spec"]["initContainers"]][-1] == "decodepool"
    review = {"request": {"uid": "1", "namespace": space, "object": POD}}
    assert post(port, "/inject", review) == 404
    (hook,) = plane.api.get(MUTATING_WEBHOOKS, None, CONFIGURATION)["webhooks"]
    assert post(port, hook["clientConfig"]["service"]["path"], review) == 200, "who was told it is answered"
