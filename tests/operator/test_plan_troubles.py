"""What keeps a pod from serving, read from the states that kubelets really report."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from decodepool_operator import times
from decodepool_operator.names import COMPONENT_LABEL
from decodepool_operator.planner.plan import plan
from decodepool_operator.planner.state import Object
from decodepool_operator.planner.troubles import SLOW_CREATION_MESSAGE, Look, Trouble, pod_trouble

from tests.operator.pools import cluster, pool
from tests.operator.simulation import START, Cluster

LOOK = Look("chat", START, frozenset({"lost"}))
PULL = (
    'failed to pull and unpack image "hub.example/m:1": failed to resolve reference "hub.example/m:1": '
    "hub.example/m:1: not found"
)


def pod(*statuses: Object, phase: str = "Pending", conditions: list[Object] | None = None, **status: Any) -> Object:
    found = {"phase": phase, "containerStatuses": list(statuses), "conditions": conditions or [], **status}
    return {"metadata": {"name": "chat-worker-5d8f-x2vbn"}, "status": found}


def waiting(reason: str, message: str = "", **more: Any) -> Object:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"name": "decodepool", "image": "worker:1", "ready": False, "state": state, **more}


def ended(code: int, message: str = "", reason: str = "Error") -> Object:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def creating(seconds_ago: int) -> Object:
    since = times.written(START - timedelta(seconds=seconds_ago))
    condition = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": since}
    return pod(waiting("ContainerCreating"), conditions=[condition])


def running(ready_until: int) -> Object:
    """A pod that started at START and is not ready since so many seconds after it."""
    since = times.written(START + timedelta(seconds=ready_until))
    container = {"name": "decodepool", "ready": False, "state": {"running": {"startedAt": times.written(START)}}}
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": since}
    return pod(container, phase="Running", conditions=[condition])


def on_lost_node(component: str) -> Object:
    found = running(ready_until=30)
    found["metadata"]["labels"] = {COMPONENT_LABEL: component}
    return {**found, "spec": {"nodeName": "lost"}}


UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
SECRET = waiting("CreateContainerConfigError", 'secret "keys" not found')
CASES: dict[str, tuple[Object, Trouble | None]] = {
    "on its way": (pod(waiting("ContainerCreating")), None),
    "behind its init containers": (pod(waiting("PodInitializing")), None),
    "running, not ready yet": (pod({"name": "decodepool", "ready": False, "state": {"running": {}}}), None),
    "running again and ready": (
        pod({"name": "decodepool", "ready": True, "state": {"running": {}}, "lastState": ended(1)}, phase="Running"),
        None,
    ),
    "no node": (pod(conditions=[UNSCHEDULED]), Trouble("Unschedulable", "0/3 nodes: no GPU")),
    "pull refused": (
        pod(waiting("ErrImagePull", PULL)),
        Trouble("ImagePullBackOff", "image hub.example/m:1 cannot be pulled: not found"),
    ),
    "pull refused and waiting": (
        pod(waiting("ImagePullBackOff", f'Back-off pulling image "hub.example/m:1": ErrImagePull: {PULL}')),
        Trouble("ImagePullBackOff", "image hub.example/m:1 cannot be pulled: not found"),
    ),
    "an image that is never pulled": (
        pod(waiting("ErrImageNeverPull", 'Container image "worker:1" is not present with pull policy of Never')),
        Trouble("ErrImageNeverPull", "image worker:1 cannot be pulled"),
    ),
    "no name of an image": (
        pod(waiting("InvalidImageName")),
        Trouble("InvalidImageName", "image worker:1 cannot be pulled"),
    ),
    "a secret is missing": (pod(SECRET), Trouble("CreateContainerConfigError", 'secret "keys" not found')),
    "crashed": (
        pod({**waiting(""), "state": ended(2, "INFO a\ndecodepool: error: no\n")}),
        Trouble("CrashLoopBackOff", "decodepool ended with 2: decodepool: error: no"),
    ),
    "crashed and waiting": (
        pod(
            waiting("CrashLoopBackOff", "back-off 10s restarting pod=chat-worker-5d8f-x2vbn", lastState=ended(2, "no"))
        ),
        Trouble("CrashLoopBackOff", "decodepool ended with 2: no"),
    ),
    "crashed and up again": (
        pod(
            {"name": "decodepool", "ready": False, "state": {"running": {}}, "lastState": ended(2, "no")},
            phase="Running",
        ),
        Trouble("CrashLoopBackOff", "decodepool ended with 2: no"),
    ),
    "died without a word": (
        pod({**waiting(""), "state": ended(139)}),
        Trouble("CrashLoopBackOff", "decodepool ended with 139 (Error)"),
    ),
    "out of memory": (
        pod(waiting("CrashLoopBackOff", lastState=ended(137, reason="OOMKilled"))),
        Trouble("OOMKilled", "decodepool was killed: it used more memory than its limit"),
    ),
    "refused by the node": (
        pod(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed"),
        Trouble("UnexpectedAdmissionError", "Allocate failed"),
    ),
    "ended of itself": (
        pod({**waiting(""), "state": ended(0, reason="Completed")}, phase="Succeeded"),
        Trouble("Completed", "the pod is Succeeded"),
    ),
    "no longer ready": (
        running(ready_until=30),
        Trouble("NotReady", "a pod that was ready is not any more: its readiness probe fails"),
    ),
    "not ready since before it started": (running(ready_until=-1), None),
    "a worker on a lost node": (
        on_lost_node("worker"),
        Trouble("NodeNotReady", "the node of a worker is not ready"),
    ),
    "a gateway on a lost node": (
        on_lost_node("gateway"),
        Trouble("NodeNotReady", "the node of a gateway is not ready"),
    ),
    "on a good node": ({**running(ready_until=-1), "spec": {"nodeName": "good"}}, None),
    "created for a while": (creating(59), None),
    "created for too long": (creating(60), Trouble("ContainerCreating", SLOW_CREATION_MESSAGE)),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_pod_is_told_by_what_it_suffers_from(name: str) -> None:
    given, expected = CASES[name]
    assert pod_trouble(given, LOOK) == expected


def test_the_fetch_that_fails_before_the_worker_is_the_trouble() -> None:
    init = {
        "name": "fetch",
        "ready": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": ended(1, "404"),
    }
    done = {"name": "first", "ready": True, "state": ended(0)}
    found = pod_trouble(pod(waiting("PodInitializing"), initContainerStatuses=[done, init]), LOOK)
    assert found == Trouble("CrashLoopBackOff", "fetch ended with 1: 404")


def test_a_pod_that_is_not_created_is_looked_at_again_when_it_is_late() -> None:
    here = cluster(pool())
    here.run(1)
    name = here.workers()[0]["metadata"]["name"]
    here.pods[name]["status"] = creating(20)["status"]
    here.pods[name]["metadata"].pop("since", None)
    seen = here.observed()
    again = plan(here.pool, seen, START).look_again_seconds
    assert again is not None
    assert again <= 40
    late = plan(here.pool, seen, START + timedelta(seconds=41))
    ready = next(each for each in late.status["conditions"] if each["type"] == "Ready")
    assert ready["reason"] == "ContainerCreating"


def test_of_several_troubles_the_most_frequent_is_told() -> None:
    here: Cluster = cluster(pool(replicas=3))
    here.settle()
    states = [waiting("CrashLoopBackOff", lastState=ended(1, "a")), SECRET, SECRET]
    for each, status in zip(here.ready_workers(), states, strict=True):
        each["status"] = {"phase": "Running", "containerStatuses": [status], "conditions": []}
    here.seen = ""
    here.operate()
    assert here.condition("Ready")["reason"] == "CreateContainerConfigError"
