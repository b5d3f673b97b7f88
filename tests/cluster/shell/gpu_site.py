"""Nodes with GPUs and an operator that sees them, as the tests of GPUs have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decodepool_cluster.linux import ClusterFault
from decodepool_operator.api.kinds import PODS

from tests.cluster.shell.fake_nodes import FakeNodes
from tests.cluster.shell.plane import Object, Plane, until

GPU, SLICE, LARGE_SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
DRAIN: Object = {"timeoutSeconds": 1}


def discovered(product: str, mebibytes: int, **more: str) -> dict[str, str]:
    """The labels that GPU feature discovery gives a node."""
    return {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(mebibytes), **more}


@dataclass(frozen=True)
class Site:
    """Nodes with GPUs, and an operator that sees them."""

    plane: Plane
    space: str
    url: str
    nodes: FakeNodes

    def make(self, name: str, accelerator: Object | None = None, *, sessions: int | None = 4, **spec: Any) -> None:
        """Make a pool of GPU workers. `sessions` None: as many as fit."""
        wanted: Object = {"accelerator": {"type": "nvidia", **(accelerator or {})}, "drain": DRAIN, **spec}
        count = {} if sessions is None else {"sessionsPerWorker": sessions}
        self.plane.make(self.space, name, self.url, **count, **wanted)

    def status(self, name: str) -> Object:
        found: Object = self.plane.pool(self.space, name).get("status") or {}
        return found

    def condition(self, name: str, kind: str) -> Any:
        return self.plane.condition(self.space, name, kind)

    def says(self, name: str, kind: str, reason: str, words: str = "") -> bool:
        """Whether a condition of the present generation has this reason, and a message with these words."""
        found, generation = self.condition(name, kind), self.plane.pool(self.space, name)["metadata"]["generation"]
        return bool(
            found.get("reason") == reason and words in found["message"] and found["observedGeneration"] == generation
        )

    def workers(self, name: str) -> list[Object]:
        """The pool's workers, those that end too."""
        selector = f"decodepool.dev/pool={name},app.kubernetes.io/component=worker"
        found: list[Object] = self.plane.api.call("GET", PODS.path(self.space), query=[("labelSelector", selector)])[
            "items"
        ]
        return found

    def holders(self, resource: str = GPU) -> list[str]:
        """For each device that is taken, the pod that has it."""
        return [
            pod["metadata"]["name"]
            for pod in self.nodes.pods(self.space)
            for container in pod["spec"]["containers"]
            if resource in container["resources"].get("limits", {})
        ]

    def wait(self, name: str, kind: str, reason: str, words: str = "", seconds: float = 40) -> None:
        """Wait until a condition says so; where it never does, tell what was said in its place."""
        try:
            until(lambda: self.says(name, kind, reason, words), f"{name}: {kind} {reason} {words}", seconds)
        except ClusterFault as fault:
            told = [f"{each['type']} {each['reason']}: {each['message']}" for each in self.status(name)["conditions"]]
            raise AssertionError(f"{fault}; {'; '.join(told)}") from fault

    def wait_ready(self, name: str) -> None:
        self.wait(name, "Ready", "AllWorkersReady")
