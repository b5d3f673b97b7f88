"""Pods and objects as Kubernetes has them: what a pod is at, which goes first, what the API server adds."""

from __future__ import annotations

from collections.abc import Mapping

from decodepool_operator.planner.census import DELETION_COST
from decodepool_operator.planner.state import Object

GPU = "nvidia.com/gpu"


def is_going(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_ready(pod: Object) -> bool:
    conditions: list[Mapping[str, str]] = pod["status"].get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def component_of(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("app.kubernetes.io/component"))


def gpus_of(pod: Object) -> int:
    return int(pod["spec"]["containers"][0].get("resources", {}).get("limits", {}).get(GPU, "0"))


def first_to_go(pods: list[Object]) -> list[Object]:
    """As the ReplicaSet controller ranks: unscheduled, not ready, cheap to delete, young."""

    def rank(pod: Object) -> tuple[bool, bool, int]:
        cost = int((pod["metadata"].get("annotations") or {}).get(DELETION_COST, "0"))
        return "node" in pod["metadata"], is_ready(pod), cost

    return sorted(pods, key=rank)


def defaulted(made: Object) -> Object:
    """What the API server adds, and how it writes what it was given."""
    if made["kind"] == "Deployment":
        made["spec"].pop("paused", None)  # false is as good as absent
        spec = made["spec"]["template"]["spec"]
        spec |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "restartPolicy": "Always"}
        for container in spec["containers"]:
            container["terminationMessagePath"] = "/dev/termination-log"
            for name in ("startupProbe", "readinessProbe", "livenessProbe"):
                container[name]["successThreshold"] = 1
            for amounts in container["resources"].values():
                if amounts.get("memory", "").isdigit() and int(amounts["memory"]) % (1 << 20) == 0:
                    amounts["memory"] = f"{int(amounts['memory']) >> 20}Mi"
    if made["kind"] == "Service":
        made["spec"].pop("publishNotReadyAddresses", None)  # false is as good as absent
        made["spec"] |= {"sessionAffinity": "None", "ipFamilies": ["IPv4"]}
    return made
