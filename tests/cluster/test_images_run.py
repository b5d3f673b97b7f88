"""The images run as a strict cluster wants it: no root, a root file system that is read-only, no capability."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from decodepool_cluster import images
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

KERNELS_ARE_READY = """
import logging, sys
logging.basicConfig(stream=sys.stdout)
from decodepool_kernels.cpu.compiling import compile_apart
compile_apart()
from decodepool_kernels.cpu.program import take_part
print("ready")
"""
NVRTC_IS_THERE = "from cuda.bindings import nvrtc; print(*nvrtc.nvrtcVersion()[1:])"


@pytest.fixture(scope="module")
def strict(bare_cluster: Cluster) -> Iterator[str]:
    """A namespace that refuses every pod that is not restricted."""
    with images.archive(*images.TARGETS) as archive:
        bare_cluster.load(archive)
    name = "strict"
    bare_cluster.kubectl("create", "namespace", name)
    bare_cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    bare_cluster.kubectl("delete", "namespace", name, "--wait=false")


def pod(name: str, target: str, **container: Any) -> dict[str, Any]:
    mounts = [{"name": "cache", "mountPath": "/cache"}, {"name": "tmp", "mountPath": "/tmp"}]
    security = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    own = {"name": "it", "image": images.name(target), "imagePullPolicy": "Never", "securityContext": security}
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{**own, "volumeMounts": mounts, **container}],
        "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def said(cluster: Cluster, namespace: str, wanted: dict[str, Any]) -> tuple[int, str]:
    """Run a pod to its end; return its exit code and all that it said."""
    name = wanted["metadata"]["name"]
    cluster.apply(wanted, namespace=namespace)

    def state() -> dict[str, Any]:
        statuses = cluster.get("pod", name, namespace)["status"].get("containerStatuses", [{}])
        ended: dict[str, Any] = statuses[0].get("state", {}).get("terminated", {})
        return ended

    wait_until(state, f"pod {name} to end", 60)
    return state()["exitCode"], cluster.kubectl("logs", name, "-n", namespace)


@pytest.mark.parametrize("target", ["worker-cpu", "gateway"])
def test_an_image_starts_as_what_it_is(target: str, bare_cluster: Cluster, strict: str) -> None:
    code, words = said(bare_cluster, strict, pod(f"{target}-helps", target, args=["--help"]))
    assert code == 0
    assert "Usage" in words


def test_the_operator_says_what_it_lacks_in_a_line(bare_cluster: Cluster, strict: str) -> None:
    code, words = said(bare_cluster, strict, pod("operator-lacks", "operator"))
    assert code != 0
    assert words.startswith("DECODEPOOL_WORKER_IMAGE")
    assert "Traceback" not in words


def test_a_worker_starts_with_the_kernels_of_its_image(bare_cluster: Cluster, strict: str) -> None:
    """The node is the machine that built the image: the CPU is the same."""
    cache = [{"name": "XDG_CACHE_HOME", "value": "/cache"}]
    command = ["python", "-c", KERNELS_ARE_READY]
    assert said(bare_cluster, strict, pod("kernels", "worker-cpu", command=command, env=cache)) == (0, "ready\n")


@pytest.fixture(scope="module")
def cuda_image(bare_cluster: Cluster) -> None:
    """The image on the node. Tests run inside the cluster's network, where nothing can be fetched to build it."""
    with images.archive("worker-cuda") as archive:
        bare_cluster.load(archive)


@pytest.mark.usefixtures("cuda_image")
def test_the_cuda_image_has_the_compiler_of_its_kernels(bare_cluster: Cluster, strict: str) -> None:
    code, words = said(bare_cluster, strict, pod("nvrtc", "worker-cuda", command=["python", "-c", NVRTC_IS_THERE]))
    assert code == 0
    assert words.startswith("13 ")
