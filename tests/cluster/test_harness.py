"""The cluster that the other tests of this folder run on is what they take it for."""

from __future__ import annotations

import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from decodepool_cluster import addresses, tools
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import ClusterFault, wait_until
from decodepool_cluster.relay import Relay

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def pod(name: str, **container: Any) -> dict[str, Any]:
    """A pod of the one image that every node has."""
    busy = {"name": "busy", "image": "localhost/pause:1", "imagePullPolicy": "Never", **container}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [busy]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def is_running(cluster: Cluster, name: str, namespace: str) -> bool:
    return bool(cluster.get("pod", name, namespace)["status"]["phase"] == "Running")


def can_connect(address: str, port: int) -> bool:
    with socket.create_connection((address, port), 1):
        return True


def test_a_pod_runs_and_can_be_looked_into(bare_cluster: Cluster, namespace: str) -> None:
    bare_cluster.apply(pod("alone"), namespace=namespace)
    wait_until(lambda: is_running(bare_cluster, "alone", namespace), "the pod to run")
    assert bare_cluster.kubectl("exec", "-n", namespace, "alone", "--", "/bin/busybox", "echo", "hello") == "hello\n"


def test_a_node_runs_what_is_pinned(bare_cluster: Cluster) -> None:
    told = bare_cluster.get("node", "node-1")["status"]["nodeInfo"]
    for module, version in (("k8s.io/kubernetes", "kubeletVersion"), ("containerd/v2", "containerRuntimeVersion")):
        pinned = re.search(rf"{module} v(\S+)", "".join(file.read_text() for file in tools.MODULES.glob("*/go.mod")))
        assert pinned
        assert pinned[1] in told[version]


def test_a_service_is_reached_by_address_and_by_name(bare_cluster: Cluster, namespace: str) -> None:
    answer = ["/bin/busybox", "httpd", "-f", "-p", "8080", "-h", "/"]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    bare_cluster.apply(pod("web", command=answer), service, namespace=namespace)
    address = bare_cluster.get("service", "web", namespace)["spec"]["clusterIP"]
    wait_until(lambda: can_connect(address, 80), "the Service to answer")
    looked_up = ["/bin/busybox", "nslookup", f"web.{namespace}.svc.cluster.local", addresses.CONTROL_PLANE]
    assert address in bare_cluster.kubectl("exec", "-n", namespace, "web", "--", *looked_up)


def test_a_fake_gpu_is_scheduled_once_and_then_is_used_up(bare_cluster: Cluster, namespace: str) -> None:
    bare_cluster.offer("node-1", "nvidia.com/gpu", 1)
    try:
        wanting = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        bare_cluster.apply(pod("first", **wanting), namespace=namespace)
        wait_until(lambda: is_running(bare_cluster, "first", namespace), "the first pod to run")
        bare_cluster.apply(pod("second", **wanting), namespace=namespace)

        def refusal() -> str:
            conditions = bare_cluster.get("pod", "second", namespace)["status"].get("conditions", [])
            return " ".join(condition.get("message", "") for condition in conditions)

        wait_until(lambda: "Insufficient nvidia.com/gpu" in refusal(), "the scheduler's reason")
    finally:
        bare_cluster.offer("node-1", "nvidia.com/gpu", None)


def test_nothing_leaves_the_network(bare_cluster: Cluster) -> None:
    with pytest.raises(OSError, match="unreachable"):
        socket.create_connection(("192.0.2.1", 80), 2)


@pytest.mark.parametrize("part", ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns"])
def test_a_killed_part_comes_back_with_its_data(part: str, bare_cluster: Cluster, namespace: str) -> None:
    bare_cluster.kill(part)
    assert not bare_cluster.processes.is_alive(part)
    bare_cluster.revive(part)
    wait_until(bare_cluster.is_serving, "the API server", 60)
    assert bare_cluster.get("namespace", namespace)["metadata"]["name"] == namespace


def test_a_part_that_runs_is_not_started_twice(bare_cluster: Cluster) -> None:
    before = bare_cluster.processes.pid("etcd")
    with pytest.raises(ClusterFault, match="etcd runs already"):
        bare_cluster.revive("etcd")
    assert bare_cluster.processes.pid("etcd") == before


def test_a_frozen_api_server_says_nothing_and_then_goes_on(bare_cluster: Cluster) -> None:
    bare_cluster.freeze("kube-apiserver")
    try:
        with pytest.raises(ClusterFault):
            bare_cluster.kubectl("get", "--raw", "/readyz", "--request-timeout=1s")
    finally:
        bare_cluster.thaw("kube-apiserver")
    wait_until(bare_cluster.is_serving, "the API server")


def test_a_node_that_loses_power_is_missed_and_comes_back(bare_cluster: Cluster) -> None:
    bare_cluster.add_nodes(2)
    try:
        bare_cluster.kill("node-2")
        wait_until(lambda: bare_cluster.ready_nodes() == {"node-1"}, "the loss to be noticed")
        bare_cluster.revive("node-2")
        wait_until(lambda: "node-2" in bare_cluster.ready_nodes(), "its return")
    finally:
        bare_cluster.remove_node("node-2")


@pytest.fixture
def api_relay(bare_cluster: Cluster) -> Iterator[Relay]:
    with Relay("127.0.0.1", 6443) as relay:
        yield relay


def readyz(port: int, authority: Path, seconds: float) -> bytes:
    context = ssl.create_default_context(cafile=authority)
    plain = socket.create_connection(("127.0.0.1", port), seconds)
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
        encrypted.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        return encrypted.recv(4096)


def test_a_relay_passes_bytes_and_can_go_silent(bare_cluster: Cluster, api_relay: Relay) -> None:
    authority = bare_cluster.home / "pki" / "ca.crt"
    assert readyz(api_relay.port, authority, 5).startswith(b"HTTP/1.0 200")
    api_relay.silence()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        readyz(api_relay.port, authority, 1)
    assert time.monotonic() - began > 0.9, "a silent relay refuses nothing"
    api_relay.resume()
    assert readyz(api_relay.port, authority, 5).startswith(b"HTTP/1.0 200")


def test_a_process_in_a_pod_can_be_killed_behind_kubelets_back(bare_cluster: Cluster, namespace: str) -> None:
    bare_cluster.apply(pod("victim"), namespace=namespace)
    wait_until(lambda: is_running(bare_cluster, "victim", namespace), "the pod to run")
    bare_cluster.signal_container("victim", namespace, signal.SIGKILL)

    def last_end() -> dict[str, Any]:
        status = bare_cluster.get("pod", "victim", namespace)["status"]["containerStatuses"][0]
        ended: dict[str, Any] = status["lastState"].get("terminated", {})
        return ended

    wait_until(lambda: last_end().get("exitCode") == 137, "kubelet to see it")


ORPHANS = """
/bin/busybox sh -c '/bin/busybox sleep 1 & echo $!'
exec /bin/busybox sleep 600
"""
"""The sleep of a second loses its parent at once, and its number is told."""


def test_pause_buries_who_has_nobody_else(bare_cluster: Cluster, namespace: str) -> None:
    """In a pod of one PID namespace it is the first process, as the real pause is."""
    wanted = pod("orphans", command=["/bin/busybox", "sh", "-c", ORPHANS])
    wanted["spec"]["shareProcessNamespace"] = True
    bare_cluster.apply(wanted, namespace=namespace)
    wait_until(lambda: is_running(bare_cluster, "orphans", namespace), "the pod to run")
    wait_until(lambda: bare_cluster.kubectl("logs", "-n", namespace, "orphans").endswith("\n"), "the orphan's number")
    orphan = int(bare_cluster.kubectl("logs", "-n", namespace, "orphans"))
    looks = ["exec", "-n", namespace, "orphans", "--", "/bin/busybox", "ls", "/proc"]
    wait_until(lambda: str(orphan) not in bare_cluster.kubectl(*looks).split(), "the orphan to be buried", 10)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "thesis.txt"
    kept.touch()
    with pytest.raises(ClusterFault, match="left as it is"):
        Cluster(tmp_path, tmp_path).start()
    assert kept.exists()
