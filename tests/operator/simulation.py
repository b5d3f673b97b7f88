"""A cluster in memory, as far as a pool can tell: API server, Deployment and Job controllers, scheduler, kubelet.

Only what the planner relies on is there, and that as Kubernetes does it: which pod of a ReplicaSet goes first, that
failed pods are replaced at once and ending ones are not counted, that the server fills in fields and writes quantities
its own way.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from decodepool_operator import times
from decodepool_operator.planner.differences import APPLIED
from decodepool_operator.planner.nodes import admits
from decodepool_operator.planner.objects.common import template_digest
from decodepool_operator.planner.plan import plan
from decodepool_operator.planner.state import (
    Decision,
    Images,
    Object,
    Observed,
    Plan,
    Reference,
    Resolution,
    WorkerReport,
)
from decodepool_sizing.status import DecodePoolStatus

from tests.operator.pods import GPU, component_of, defaulted, first_to_go, gpus_of, is_going, is_ready

IMAGES = Images("worker:1", "worker-cuda:1", "gateway:1", "operator:1", "IfNotPresent")
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Fate:
    """What becomes of a pod once it has a node: `ready_after` seconds; or it ends, and how."""

    ready_after: int = 2
    fails: str | None = None
    """A pod's reason for Failed, such as UnexpectedAdmissionError."""
    crashes: str | None = None
    """A container's last words, again and again."""
    out_of_memory: bool = False
    pulls: bool = True
    says: str = ""
    """Last words of a container that runs to its end; `exits` with which code."""
    exits: int = 0
    unready_from: int | None = None
    """The second from which its readiness probe fails, though it runs on."""
    drains: int = 1
    """Seconds from being deleted to being gone."""


def well(_: Object) -> Fate:
    return Fate()


@dataclass
class Cluster:
    """A cluster with one pool. `fate` decides what becomes of each pod; `load`, how many sessions a worker holds;
    `fingerprints`, whose bits it gives, where they are not everybody's.
    """

    pool: Object
    fate: Callable[[Object], Fate] = well
    nodes: list[Object] = field(default_factory=list)
    load: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    fingerprints: dict[str, str] = field(default_factory=dict)
    resolution: Resolution | None = None
    queued: int | None = 0
    faults: tuple[str, ...] = ()
    """What the API server refused of the last plan, and what is wrong for every pool."""
    refuses_marks: bool = False
    quota_message: str | None = None
    """Why no more pods of `refused_component` are made."""
    refused_component: str = "worker"
    unschedulable: str | None = None
    """Why no pod gets a node, where it is not for want of GPUs."""
    refused_template: str | None = None
    """Why the API server takes no other template of workers than the one it has."""
    makes_job_pods: bool = True
    now: datetime = START
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    writes: int = 0
    plans: int = 0
    made_pods: int = 0
    events: list[Any] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    """Each where it began, as the log tells them."""
    history: list[Object] = field(default_factory=list)
    last: Plan | None = None
    look_at: datetime | None = None
    dies: Callable[[], bool] = lambda: False
    """Asked before every write: whether the operator is killed here."""
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    seen: str = ""

    # What a user does

    def edit(self, change: Callable[[Object], None]) -> None:
        before = json.dumps(self.pool["spec"], sort_keys=True)
        change(self.pool["spec"])
        if json.dumps(self.pool["spec"], sort_keys=True) != before:
            self.pool["metadata"]["generation"] += 1

    def condition(self, kind: str) -> Object:
        return next(each for each in self.status["conditions"] if each["type"] == kind)

    @property
    def status(self) -> Object:
        status: Object = self.pool.get("status", {})
        return status

    def workers(self) -> list[Object]:
        return [pod for pod in self.pods.values() if component_of(pod) == "worker"]

    def ready_workers(self) -> list[Object]:
        return [pod for pod in self.workers() if is_ready(pod) and not is_going(pod)]

    # Time

    def run(self, seconds: int, check: Callable[[Cluster], None] | None = None) -> None:
        """Let time pass, a second at a time; `check` sees every moment."""
        for _ in range(seconds):
            self.operate()
            self._controllers()
            if check:
                check(self)
            self.now += timedelta(seconds=1)
            self._kubelet()
            self._controllers()  # of a pod that has failed they hear no later than the operator
        self.operate()

    def settle(self, seconds: int = 120, check: Callable[[Cluster], None] | None = None) -> None:
        """Let time pass until nothing has changed for a while."""
        quiet = 0
        for _ in range(seconds):
            before = self._picture()
            self.run(1, check)
            quiet = quiet + 1 if self._picture() == before else 0
            if quiet >= 10:
                return
        raise AssertionError(f"not settled after {seconds} s: {self.status.get('conditions')}")

    def operate(self) -> None:
        """Look at the pool as the shell does: when something changed, or when it is time."""
        for _ in range(20):
            picture = self._picture()
            if picture == self.seen and not (self.look_at and self.now >= self.look_at):
                return
            self.seen = picture
            found = plan(copy.deepcopy(self.pool), self.observed(), self.now)
            self.plans += 1
            before = self.last.decisions if self.last else ()
            self.decisions += [each for each in found.decisions if each not in before]
            self.last = found
            again = found.look_again_seconds
            self.look_at = None if again is None else self.now + timedelta(seconds=again)
            self._carry_out(found)
        raise AssertionError("the planner's own writes make it write for ever")

    def observed(self) -> Observed:
        reports = {
            name: WorkerReport(
                name,
                pod["metadata"]["uid"],
                sessions_capacity=8,
                sessions_active=self.load.get(name, 0),
                fingerprint=self.fingerprints.get(name, "dp-one"),
            )
            for name, pod in self.pods.items()
            if component_of(pod) == "worker" and is_ready(pod) and name not in self.silent
        }
        return Observed(
            images=IMAGES,
            children=tuple(copy.deepcopy(list(self.objects.values()))),
            pods=tuple(copy.deepcopy(list(self.pods.values()))),
            nodes=tuple(copy.deepcopy(self.nodes)),
            reports=reports,
            resolution=self.resolution,
            queued=self.queued,
            faults=self.faults,
        )

    def _picture(self) -> str:
        parts = [self.pool, self.objects_list(), list(self.pods.values()), self.nodes, self.load]
        return json.dumps(
            [*parts, sorted(self.silent), self.fingerprints, self.queued, self.faults, repr(self.resolution)],
            sort_keys=True,
        )

    def objects_list(self) -> list[Object]:
        return list(self.objects.values())

    # The API server

    def _carry_out(self, found: Plan) -> None:
        """Do what a plan says, in the shell's order. An operator that is killed in between never does the rest."""
        for write in self._writes_of(found):
            if self.dies():
                self.seen, self.look_at = "", None
                return
            self.writes += 1
            write()
        self.events += found.events

    def _writes_of(self, found: Plan) -> Iterator[Callable[[], None]]:
        for name, marks in found.annotate:
            yield partial(self._annotate, name, marks)
        if found.shrink is not None:
            yield partial(self._shrink, *found.shrink)
        for each in found.apply:
            yield partial(self._refuse_or_apply, each)
        for reference in found.delete:
            yield partial(self._delete, reference.kind, reference.name, reference.uid)
        if found.replicas is not None:
            yield partial(self.edit, lambda spec: spec.update(replicas=found.replicas))
        if found.writes_status:
            yield partial(self._write_status, found.status)

    def _annotate(self, name: str, marks: Mapping[str, str]) -> None:
        if self.refuses_marks:
            self.faults = tuple({*self.faults, f"Pod {name}: Forbidden: no annotations here"})
        elif name in self.pods:
            self.pods[name]["metadata"].setdefault("annotations", {}).update(marks)

    def _write_status(self, status: Object) -> None:
        DecodePoolStatus.model_validate(status)  # the API server drops what its schema does not have
        self.pool["status"] = copy.deepcopy(status)
        self.history.append(copy.deepcopy(status))

    def _shrink(self, reference: Reference, replicas: int) -> None:
        deployment = self.objects[reference.kind, reference.name]
        assert reference.uid == deployment["metadata"]["uid"]
        assert replicas < deployment["spec"]["replicas"], "never upwards"
        deployment["spec"]["replicas"] = replicas
        deployment["metadata"]["annotations"].pop(APPLIED, None)

    def _refuse_or_apply(self, wanted: Object) -> None:
        live = self.objects.get((wanted["kind"], wanted["metadata"]["name"]))
        is_workers = wanted["kind"] == "Deployment" and wanted["metadata"]["name"].endswith("-worker")
        refusal = f"Deployment {wanted['metadata']['name']}: Invalid: {self.refused_template}"
        self.faults = tuple(each for each in self.faults if not is_workers or not each.startswith("Deployment"))
        if is_workers and self.refused_template and live and template_digest(live) != template_digest(wanted):
            self.faults = (*self.faults, refusal)
        else:
            self._apply(wanted)

    def _apply(self, wanted: Object) -> None:
        key = (wanted["kind"], wanted["metadata"]["name"])
        before = self.objects.get(key)
        made = defaulted(copy.deepcopy(wanted))
        metadata = made["metadata"]
        if before is None:
            metadata |= {"uid": f"u{next(self.numbers)}", "creationTimestamp": times.written(self.now), "generation": 1}
        else:
            kept = {name: before["metadata"][name] for name in ("uid", "creationTimestamp", "generation")}
            changed = made.get("spec") != before.get("spec")
            metadata |= {**kept, "generation": kept["generation"] + changed}
            if "status" in before:
                made["status"] = before["status"]
        self.objects[key] = made

    def _delete(self, kind: str, name: str, uid: str | None) -> None:
        if kind == "Pod":
            pod = self.pods.get(name)
            if pod is not None and uid in (None, pod["metadata"]["uid"]):
                self.pods.pop(name)
            return
        gone = self.objects.get((kind, name))
        if gone is None or uid not in (None, gone["metadata"]["uid"]):
            return
        del self.objects[kind, name]
        for pod in list(self.pods.values()):
            if pod["metadata"].get("owner") == (kind, name):
                self._end(pod)

    # Controllers

    def _controllers(self) -> None:
        for (kind, name), each in list(self.objects.items()):
            if kind == "Deployment":
                self._deployment(name, each)
            if (
                kind == "Job"
                and self.makes_job_pods
                and not any(pod["metadata"]["owner"] == (kind, name) for pod in self.pods.values())
            ):
                self._make(name, (kind, name), each["spec"]["template"])
        self._schedule()

    def _deployment(self, name: str, deployment: Object) -> None:
        """Rolling update: old pods go while enough are available, new ones come while there are not too many."""
        spec = deployment["spec"]
        rolling = spec["strategy"]["rollingUpdate"]
        wanted, template = spec["replicas"], spec["template"]
        mine = [p for p in self.pods.values() if p["metadata"]["owner"] == ("Deployment", name)]
        active = [p for p in mine if not is_going(p) and p["status"]["phase"] in ("Pending", "Running")]
        new = [p for p in active if p["metadata"]["template"] == template]
        old = [p for p in active if p["metadata"]["template"] != template]
        for pod in first_to_go(new)[: max(0, len(new) - wanted)]:
            self._end(pod)
        minimum = wanted - rolling["maxUnavailable"]
        for pod in first_to_go(old):
            available = [p for p in active if is_ready(p) and not is_going(p)]
            others = [p for p in active if not is_going(p)]
            if (not is_ready(pod) and len(others) > minimum) or (is_ready(pod) and len(available) > minimum):
                self._end(pod)
        room = wanted + rolling["maxSurge"] - len([p for p in active if not is_going(p)])
        self._grow(name, deployment, min(room, wanted - len(new)))

    def _grow(self, name: str, deployment: Object, count: int) -> None:
        refused = count > 0 and self.quota_message is not None and name.endswith(f"-{self.refused_component}")
        conditions = []
        if refused:
            message = str(self.quota_message).format(pod=f"{name}-5d{next(self.numbers) % 10}f-abcde")
            conditions = [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}]
        deployment["status"] = {"observedGeneration": deployment["metadata"]["generation"], "conditions": conditions}
        if not refused:
            for _ in range(max(0, count)):
                self._make(name, ("Deployment", name), deployment["spec"]["template"])

    def _make(self, prefix: str, owner: tuple[str, str], template: Object) -> None:
        number = next(self.numbers)
        name = f"{prefix}-{len(prefix)}ab{number % 7}-{number:05d}"
        metadata = {
            **copy.deepcopy(template["metadata"]),
            "name": name,
            "uid": f"p{number}",
            "creationTimestamp": times.written(self.now),
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"{prefix}-{len(prefix)}ab", "controller": True}],
            "owner": owner,
            "template": copy.deepcopy(template),
        }
        self.made_pods += 1
        self.pods[name] = {
            "metadata": metadata,
            "spec": copy.deepcopy(template["spec"]),
            "status": {"phase": "Pending"},
        }

    def _end(self, pod: Object) -> None:
        if not is_going(pod):
            grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
            pod["metadata"]["deletionGracePeriodSeconds"] = grace
            pod["metadata"]["deletionTimestamp"] = times.written(self.now + timedelta(seconds=grace))
            pod["metadata"]["ending"] = times.written(self.now)

    def _schedule(self) -> None:
        for pod in self.pods.values():
            if pod["status"]["phase"] != "Pending" or "node" in pod["metadata"] or is_going(pod):
                continue
            needs = gpus_of(pod)
            wants = pod["spec"].get("affinity") or {}
            free = (
                [node for node in self.nodes if self._free(node) >= needs and admits(wants, node)] if needs else [None]
            )
            if not free or self.unschedulable:
                message = (
                    self.unschedulable
                    or f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient {GPU}."
                )
                pod["status"]["conditions"] = [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": message,
                        "lastTransitionTime": pod["metadata"]["creationTimestamp"],
                    }
                ]
                continue
            node = free[0]
            pod["metadata"]["node"] = pod["spec"]["nodeName"] = node["metadata"]["name"] if node else "any"
            pod["metadata"]["since"] = times.written(self.now)
            pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]

    def _free(self, node: Object) -> int:
        here = [p for p in self.pods.values() if p["metadata"].get("node") == node["metadata"]["name"]]
        taken = sum(gpus_of(p) for p in here if p["status"]["phase"] in ("Pending", "Running"))
        return int(node["status"]["allocatable"].get(GPU, "0")) - taken

    # The kubelet

    def _kubelet(self) -> None:
        for name, pod in list(self.pods.items()):
            ending, since = times.read(pod["metadata"].get("ending")), times.read(pod["metadata"].get("since"))
            over = pod["status"]["phase"] in ("Failed", "Succeeded") or since is None
            if ending and self.now >= ending + timedelta(seconds=0 if over else self.fate(pod).drains):
                self._gone(name, pod)
            elif since and pod["status"]["phase"] in ("Pending", "Running"):
                self._live(pod, self.fate(pod), int((self.now - since).total_seconds()))

    def _gone(self, name: str, pod: Object) -> None:
        """A pod that ends as it should is seen once more: over, and still there."""
        if pod["status"]["phase"] == "Running":
            pod["status"].update(phase="Succeeded", conditions=[])
        else:
            del self.pods[name]

    def _live(self, pod: Object, fate: Fate, age: int) -> None:
        status = pod["status"]
        container = pod["spec"]["containers"][0]
        base = {"name": container["name"], "image": container["image"], "ready": False, "restartCount": 0, "state": {}}
        if fate.fails:
            status.update(phase="Failed", reason=fate.fails, message=f"{fate.fails} on this node", conditions=[])
        elif not fate.pulls:
            waiting = {"reason": "ErrImagePull" if age % 2 else "ImagePullBackOff", "message": f"back-off {age}s"}
            status["containerStatuses"] = [{**base, "state": {"waiting": waiting}}]
        elif fate.crashes is not None or fate.out_of_memory:
            self._crash(pod, fate, age, base)
        elif age >= fate.ready_after and component_of(pod) == "reader":
            ended = {"exitCode": fate.exits, "message": fate.says, "reason": "Error" if fate.exits else "Completed"}
            status.update(phase="Failed" if fate.exits else "Succeeded")
            status["containerStatuses"] = [{**base, "state": {"terminated": ended}}]
        elif age >= fate.ready_after:
            is_well = fate.unready_from is None or age < fate.unready_from
            status.update(phase="Running", conditions=[{"type": "Ready", "status": str(is_well)}])
            status["containerStatuses"] = [{**base, "ready": is_well, "started": True, "state": {"running": {}}}]
        else:
            status.update(phase="Running", conditions=[{"type": "Ready", "status": "False"}])
            status["containerStatuses"] = [{**base, "state": {"running": {}}}]

    def _crash(self, pod: Object, fate: Fate, age: int, base: Object) -> None:
        reason = "OOMKilled" if fate.out_of_memory else "Error"
        ended = {"exitCode": 137 if fate.out_of_memory else 1, "reason": reason, "message": fate.crashes or ""}
        states: list[Object] = [
            {"state": {"terminated": ended}},
            {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": f"back-off {age}s restarting"}}},
            {"state": {"running": {}}},
        ]
        last = {} if age < 2 else {"lastState": {"terminated": ended}}
        container = {**base, "restartCount": age // 3, **states[age % 3], **last}
        if age == 0:
            container = {**base, "state": {"running": {}}}
        conditions = [{"type": "Ready", "status": "False"}]
        pod["status"].update(phase="Running", conditions=conditions, containerStatuses=[container])
