"""Nodes without a machine: the real scheduler puts pods on them, and a thread says of each pod that it runs.

What they prove is what is planned, asked for, scheduled, waited for and replaced. Nothing runs: no GPU is feigned.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from decodepool_operator.api.faults import ApiFault
from decodepool_operator.api.kinds import LEASES, NODES, PODS
from decodepool_operator.names import COMPONENT_LABEL, WORKER

from tests.cluster.shell.plane import Object, Plane, until

LOOK_SECONDS = 0.1
HEARTBEAT_SECONDS = 1.0
"""A node is lost after 8 s of silence in these clusters."""
READY: Object = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "said by a test"}
NOWHERE = "192.0.2.1"
"""An address that the network refuses to send to, so that nobody waits for an answer."""
LEASES_OF_NODES = "kube-node-lease"
AMPLE: Object = {"cpu": "64", "memory": "2000Gi", "pods": "110", "ephemeral-storage": "1000Gi"}


@dataclass
class FakeNodes:
    """Kubelets of nodes that are not there. `end_seconds` is how long a pod takes to end; on nodes that are `unfit`,
    each worker ends at its start, again and again.
    """

    plane: Plane
    end_seconds: float = 0.0
    alive: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    unfit: set[str] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def add(
        self, name: str, offers: Mapping[str, int], labels: Mapping[str, str] | None = None, taint: str | None = None
    ) -> None:
        """Make a node that offers devices, and wait until pods may be put on it. A taint is KEY=VALUE, NoSchedule."""
        key, _, value = (taint or "").partition("=")
        taints = [{"key": key, "value": value, "effect": "NoSchedule"}] if taint else []
        amounts = {**AMPLE, **{resource: str(count) for resource, count in offers.items()}}
        all_labels = {"kubernetes.io/hostname": name, **(labels or {})}
        self.plane.api.call("POST", LEASES.path(LEASES_OF_NODES), lease(name))
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": all_labels}}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [READY]}
        self.plane.api.call("POST", NODES.path(), {**body, "spec": {"taints": taints}, "status": status})
        self.made.add(name)
        self.alive.add(name)
        until(lambda: not self._taints(name, "node.kubernetes.io/"), f"{name} to be taken for ready")

    def lose(self, name: str) -> None:
        """Have a node fall silent, and wait until that is noticed."""
        self.alive.discard(name)
        until(lambda: self._taints(name, "node.kubernetes.io/unreachable"), f"{name} to be missed")

    def find(self, name: str) -> None:
        """Have a lost node speak again."""
        self.alive.add(name)
        until(lambda: not self._taints(name, "node.kubernetes.io/"), f"{name} to be taken for ready")

    def pods(self, namespace: str) -> list[Object]:
        """The pods of a namespace that have a node."""
        items = self.plane.api.call("GET", PODS.path(namespace))["items"]
        return [pod for pod in items if pod["spec"].get("nodeName")]

    def run_pods(self) -> None:
        """Be the kubelets of pods, until it is over."""
        while not self.over.wait(LOOK_SECONDS):
            with suppress(ApiFault):
                for pod in self.plane.api.call("GET", PODS.path())["items"]:
                    if pod["spec"].get("nodeName") in self.alive:
                        self._run(pod)

    def tell_of_nodes(self) -> None:
        """Say of each node that it is well, until it is over."""
        while not self.over.wait(HEARTBEAT_SECONDS):
            for name in self.alive.copy():
                with suppress(ApiFault):
                    self.plane.change(LEASES, LEASES_OF_NODES, name, {"spec": renewal(name)})
                    self._tell_ready(name)

    def remove(self) -> None:
        """Take every node away."""
        for name in self.made:
            self.plane.delete(NODES, None, name)
            self.plane.delete(LEASES, LEASES_OF_NODES, name)

    def _run(self, pod: Object) -> None:
        metadata = pod["metadata"]
        asked = metadata.get("deletionTimestamp")
        with suppress(ApiFault):  # somebody else may have ended it meanwhile
            if asked is None and pod["status"].get("phase") == "Pending":
                is_worker = metadata.get("labels", {}).get(COMPONENT_LABEL) == WORKER
                status = crashing(pod) if is_worker and pod["spec"]["nodeName"] in self.unfit else running(pod)
                self.plane.change(PODS, metadata["namespace"], metadata["name"], {"status": status}, "status")
            elif asked is not None and seconds_since(asked, metadata) >= self.end_seconds:
                now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
                self.plane.api.call("DELETE", PODS.path(metadata["namespace"], metadata["name"]), now)

    def _tell_ready(self, name: str) -> None:
        """Whoever found the node lost says so in its status, until the kubelet says otherwise."""
        conditions = self.plane.api.get(NODES, None, name)["status"]["conditions"]
        if any(each["type"] == "Ready" and each["status"] != "True" for each in conditions):
            self.plane.change(NODES, "", name, {"status": {"conditions": [READY]}}, "status")

    def _taints(self, name: str, beginning: str) -> list[Any]:
        taints = self.plane.api.get(NODES, None, name)["spec"].get("taints", [])
        return [each for each in taints if each["key"].startswith(beginning)]


def lease(name: str) -> Object:
    """The lease that a node renews while it lives."""
    metadata = {"name": name, "namespace": LEASES_OF_NODES}
    return {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": renewal(name)}


def renewal(name: str) -> Object:
    return {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": f"{now():%Y-%m-%dT%H:%M:%S.%fZ}"}


def running(pod: Object) -> Object:
    """The status of a pod that runs, and is ready."""
    at = f"{now():%Y-%m-%dT%H:%M:%SZ}"
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": at}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    containers = [
        {"name": each["name"], "image": each["image"], "imageID": "", "ready": True, "started": True,
         "restartCount": 0, "state": {"running": {"startedAt": at}}}
        for each in pod["spec"]["containers"]
    ]  # fmt: skip
    address = {"podIP": NOWHERE, "podIPs": [{"ip": NOWHERE}]}
    return {"phase": "Running", "startTime": at, "conditions": conditions, "containerStatuses": containers, **address}


def crashing(pod: Object) -> Object:
    """The status of a pod whose containers end as soon as they begin."""
    status = running(pod)
    ended = {"exitCode": 1, "reason": "Error", "message": "it cannot run here", "containerID": "containerd://1"}
    down = {
        "ready": False,
        "started": False,
        "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
    }
    conditions = [
        {**each, "status": "False" if each["type"] in ("ContainersReady", "Ready") else "True"}
        for each in status["conditions"]
    ]
    containers = [{**each, **down} for each in status["containerStatuses"]]
    return {**status, "conditions": conditions, "containerStatuses": containers}


def seconds_since(asked: str, metadata: Object) -> float:
    """Since a pod was told to end: its deletion time is when its grace will be over."""
    over = datetime.fromisoformat(asked)
    return (now() - over).total_seconds() + float(metadata.get("deletionGracePeriodSeconds") or 0)


def now() -> datetime:
    return datetime.now(UTC)


@contextmanager
def fake_nodes(plane: Plane) -> Iterator[FakeNodes]:
    """Have nodes made by `add` for a while. Inside the cluster's network only."""
    nodes = FakeNodes(plane)
    threads = [threading.Thread(target=each) for each in (nodes.run_pods, nodes.tell_of_nodes)]
    for thread in threads:
        thread.start()
    try:
        yield nodes
    finally:
        nodes.over.set()
        for thread in threads:
            thread.join()
        nodes.remove()
