"""Sidecars on a real cluster: injected by the webhook, run by a kubelet, counted by the operator."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from decodepool_cluster import product
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import ClusterFault, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]

MODEL = "/var/lib/decodepool/models/SmolLM2-135M-Instruct.Q4_1.gguf"


def pool(**spec: Any) -> dict[str, Any]:
    base = {
        "model": {"source": {"hostPath": {"path": MODEL}}},
        "contextTokens": 512,
        "sessionsPerWorker": 2,
        "replicas": 0,
        "accelerator": {"type": "cpu"},
    }
    kind = {"apiVersion": "decodepool.dev/v1alpha1", "kind": "DecodePool"}
    return {**kind, "metadata": {"name": "beside"}, "spec": {**base, **spec}}


def app(pool_name: str = "beside") -> dict[str, Any]:
    metadata = {"name": "app", "labels": {"decodepool.dev/sidecar-of": pool_name}}
    container = {"name": "app", "image": "localhost/pause:1", "imagePullPolicy": "Never"}
    spec = {"terminationGracePeriodSeconds": 10, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def is_ready(cluster: Cluster, kind: str, name: str, namespace: str, condition: str = "Ready") -> bool:
    conditions = cluster.get(kind, name, namespace).get("status", {}).get("conditions", [])
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


def test_an_application_finds_its_model_on_localhost(cluster: Cluster, namespace: str) -> None:
    cluster.apply(pool(), namespace=namespace)
    planned = ("decodepool", "beside", namespace, "CapacityPlanned")
    wait_until(lambda: is_ready(cluster, *planned), "the pool to be planned", 120)
    cluster.apply(app(), namespace=namespace)
    wait_until(lambda: is_ready(cluster, "pod", "app", namespace), "the pod with its sidecar", 180)
    told = cluster.kubectl(
        "exec", "-n", namespace, "app", "-c", "app", "--",
        "/bin/busybox", "wget", "-qO-", "http://127.0.0.1:8000/v1/capacity",
    )  # fmt: skip
    assert json.loads(told)["sessions"] == {"capacity": 2, "active": 0, "free": 2}
    address = cluster.get("pod", "app", namespace)["status"]["podIP"]
    assert status_of(f"http://{address}:8000/v1/capacity") == 200, "the operator counts"
    assert status_of(f"http://{address}:8000/v1/sessions") == 403, "nobody else is served"

    def counted() -> dict[str, Any]:
        status: dict[str, Any] = cluster.get("decodepool", "beside", namespace)["status"]
        return status

    wanted = {"count": 1, "ready": 1, "capacity": 2, "active": 0}
    wait_until(lambda: counted().get("sidecars") == wanted, "the sidecar in the pool's status", 60)
    assert counted()["replicas"] == 0, "a sidecar is no worker of the pool"
    cluster.kubectl("delete", "pod", "app", "-n", namespace, "--timeout=60s")
    wait_until(lambda: not counted().get("sidecars", {}).get("count"), "the status without it", 60)


def test_a_sidecar_of_no_pool_is_refused_at_the_door(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(ClusterFault, match="DecodePool nowhere: there is no such pool in this namespace"):
        cluster.apply(app("nowhere"), namespace=namespace)


def plain() -> dict[str, Any]:
    pod = app()
    pod["metadata"] = {"name": "plain"}
    return pod


def test_while_the_operator_is_away_only_pods_that_ask_for_a_sidecar_wait(cluster: Cluster, namespace: str) -> None:
    operator = ("-n", product.SYSTEM, "deployment/decodepool-operator")
    cluster.apply(pool(), namespace=namespace)
    planned = ("decodepool", "beside", namespace, "CapacityPlanned")
    wait_until(lambda: is_ready(cluster, *planned), "the pool to be planned", 120)
    cluster.kubectl("scale", *operator, "--replicas=0")
    cluster.kubectl("wait", "-n", product.SYSTEM, "--for=delete", "pod", "--all", "--timeout=60s")
    try:
        cluster.apply(plain(), namespace=namespace)
        with pytest.raises(ClusterFault, match=r"sidecar\.decodepool\.dev"):
            cluster.apply(app(), namespace=namespace)
    finally:
        cluster.kubectl("scale", *operator, "--replicas=1")
        cluster.kubectl("rollout", "status", *operator, "--timeout=120s")

    def is_taken() -> bool:
        cluster.apply(app(), namespace=namespace)
        return True

    wait_until(is_taken, "the operator's certificate to be trusted as before", 60)
