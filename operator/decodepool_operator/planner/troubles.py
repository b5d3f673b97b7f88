"""What keeps a pod from serving, as its own status tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from decodepool_sizing.errors import one_line

from decodepool_operator import times
from decodepool_operator.names import COMPONENT_LABEL
from decodepool_operator.planner.state import Object
from decodepool_operator.texts import last_line, steady

BENIGN_WAITS = frozenset({"ContainerCreating", "PodInitializing", "PodCreated", ""})
PULL_REASONS = frozenset({"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"})
PULL_WAITS = PULL_REASONS | {"ErrImagePull"}


_IMAGE = re.compile(r'image (?:tag )?"([^"]{1,512})"')
LONGEST_CLAUSE = 120

CREATED = "PodReadyToStartContainers"
SLOW_CREATION = timedelta(seconds=60)
"""How long a pod that has its node may take to get its volumes and its address."""

SLOW_CREATION_MESSAGE = "a Secret, ConfigMap or volume that it mounts is missing or slow; the pod's events say which"


@dataclass(frozen=True)
class Trouble:
    """Why a pod does not serve: one CamelCase word, and a line that stays the same while nothing changes."""

    reason: str
    message: str


UNSCHEDULABLE = "Unschedulable"


@dataclass(frozen=True)
class Look:
    """What a pod is looked at with: whose it is, when, which nodes are not ready, and which pods are on GPUs that
    are too old and that their own affinity keeps them off.
    """

    pool_name: str
    now: datetime
    lost_nodes: frozenset[str] = frozenset()
    misplaced: frozenset[str] = frozenset()


def pod_trouble(pod: Object, look: Look) -> Trouble | None:
    """Return what keeps a pod from serving; None for one that is well, or merely on its way."""
    found = (
        _failed(pod)
        or _unscheduled(pod)
        or _on_lost_node(pod, look)
        or next(_container_troubles(pod), None)
        or _stalled(pod, look.now)
        or _no_longer_ready(pod)
    )
    return found and Trouble(one_line(found.reason), steady(found.message, look.pool_name))


def _on_lost_node(pod: Object, look: Look) -> Trouble | None:
    if pod.get("spec", {}).get("nodeName") not in look.lost_nodes:
        return None
    whose = (pod["metadata"].get("labels") or {}).get(COMPONENT_LABEL, "pod")
    return Trouble("NodeNotReady", f"the node of a {whose} is not ready")


def _no_longer_ready(pod: Object) -> Trouble | None:
    """A pod is not ready before its containers start, too: it was ready if it has become so after that."""
    ready = condition_of(pod, "Ready")
    since = times.read(ready.get("lastTransitionTime")) if ready.get("status") == "False" else None
    starts = [times.read((each.get("state", {}).get("running") or {}).get("startedAt")) for each in _statuses(pod)]
    if since is None or not starts or not all(start and start < since for start in starts):
        return None
    return Trouble("NotReady", "a pod that was ready is not any more: its readiness probe fails")


def condition_of(pod: Object, kind: str) -> Object:
    """Return one of an object's conditions; an empty one where it has none."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def stalls_at(pod: Object) -> datetime | None:
    """Return when a pod that is being created has been so for too long."""
    created = condition_of(pod, CREATED)
    if created.get("status") != "False" or pod.get("status", {}).get("phase") != "Pending":
        return None
    since = times.read(created.get("lastTransitionTime"))
    return since and since + SLOW_CREATION


def _stalled(pod: Object, now: datetime) -> Trouble | None:
    """The kubelet tells what is missing in an event alone; that something is, in the pod's status."""
    due = stalls_at(pod)
    if due is None or now < due:
        return None
    return Trouble("ContainerCreating", SLOW_CREATION_MESSAGE)


def _failed(pod: Object) -> Trouble | None:
    status = pod.get("status", {})
    if status.get("phase") not in ("Failed", "Succeeded"):
        return None
    ended: Object = next((t for each in _statuses(pod) if (t := each.get("state", {}).get("terminated"))), {})
    reason = status.get("reason") or ended.get("reason") or status["phase"]
    message = status.get("message") or last_line(ended.get("message") or "") or f"the pod is {status['phase']}"
    return Trouble(reason, message)


def _unscheduled(pod: Object) -> Trouble | None:
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    return Trouble(scheduled.get("reason") or UNSCHEDULABLE, scheduled.get("message") or "no node was found")


def _container_troubles(pod: Object) -> Iterator[Trouble]:
    for status in _statuses(pod):
        if status.get("ready") or (status.get("state", {}).get("terminated") or {}).get("exitCode") == 0:
            continue
        waiting = status.get("state", {}).get("waiting") or {}
        if waiting.get("reason") in PULL_WAITS:
            yield _pull_trouble(status, waiting)
        elif ended := _ended(status):
            yield _ended_trouble(status, ended)
        elif waiting.get("reason", "") not in BENIGN_WAITS:
            yield Trouble(waiting["reason"], last_line(waiting.get("message") or "") or "the container cannot start")


def _statuses(pod: Object) -> list[Object]:
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _pull_trouble(status: Object, waiting: Object) -> Trouble:
    """Return one trouble for both of the reasons that the kubelet alternates between: which image, and the last clause
    of why. The image may be a volume's.
    """
    said = str(waiting.get("message") or "")
    named = _IMAGE.search(said)
    image = named[1] if named else status.get("image") or "its image"
    reason = waiting["reason"] if waiting["reason"] in PULL_REASONS else "ImagePullBackOff"
    clause = said.rpartition(": ")[2].strip()
    why = f": {clause}" if ": " in said and len(clause) <= LONGEST_CLAUSE and '"' not in clause else ""
    return Trouble(reason, f"image {image} cannot be pulled{why}")


def _ended(status: Object) -> Object | None:
    """Return how a container ended that is down, or up again and not ready: what it died of holds until it serves."""
    for state in (status.get("state") or {}, status.get("lastState") or {}):
        ended = state.get("terminated")
        if ended:
            found: Object = ended
            return found
    return None


def _ended_trouble(status: Object, ended: Object) -> Trouble:
    code = ended.get("exitCode", 0)
    words = last_line(ended.get("message") or "")
    name = status.get("name", "container")
    if ended.get("reason") == "OOMKilled":
        return Trouble("OOMKilled", f"{name} was killed: it used more memory than its limit")
    said = f": {words}" if words else f" ({ended.get('reason') or 'no reason given'})"
    return Trouble("CrashLoopBackOff", f"{name} ended with {code}{said}")
