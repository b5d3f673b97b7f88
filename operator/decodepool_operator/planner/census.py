"""The pool's pods, counted: which are of the present template, which are ready, which go, which failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from decodepool_operator import times
from decodepool_operator.names import SIDECAR_LABEL, is_made_for
from decodepool_operator.planner.objects.common import TEMPLATE
from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.state import Object, WorkerReport
from decodepool_operator.planner.troubles import Look, Trouble, condition_of, pod_trouble


@dataclass(frozen=True)
class Member:
    """One pod. `started`: its container, as it runs now, has been ready once, so it may hold sessions, ready or not.
    `current`: made from the present template. `waits_since`: since when it has no node to go to. `report` None: it did
    not say. `failed`: over without having been deleted, as a pod that is deleted ends too; or in trouble from its start
    on a node that would not get it any more.
    `overdue`: still there after its grace period, which it is from `late_at` on.
    """

    name: str
    uid: str
    ready: bool
    started: bool
    going: bool
    failed: bool
    current: bool
    created: datetime | None
    going_since: datetime | None
    late_at: datetime | None
    overdue: bool
    waits_since: datetime | None
    trouble: Trouble | None
    report: WorkerReport | None
    deletion_cost: str | None


@dataclass(frozen=True)
class Census:
    """The workers of a pool."""

    members: tuple[Member, ...]

    @property
    def alive(self) -> list[Member]:
        """Workers that exist, are not ending and have not failed."""
        return [each for each in self.members if not each.going and not each.failed]

    @property
    def ready(self) -> list[Member]:
        """Workers that admit sessions, of whatever template."""
        return [each for each in self.alive if each.ready]

    @property
    def started(self) -> list[Member]:
        """Workers that may hold sessions: those that are ready, or were before something befell them."""
        return [each for each in self.alive if each.started]

    @property
    def current(self) -> list[Member]:
        """Workers of the present template."""
        return [each for each in self.alive if each.current]

    @property
    def current_ready(self) -> list[Member]:
        """Workers of the present template that admit sessions."""
        return [each for each in self.current if each.ready]

    @property
    def draining(self) -> list[Member]:
        """Workers that were told to end."""
        return sorted((each for each in self.members if each.going), key=lambda each: each.name)

    @property
    def failed(self) -> list[Member]:
        """Pods that are over and will not run again, or not where they are."""
        return [each for each in self.members if each.failed]

    @property
    def trouble(self) -> Trouble | None:
        """What keeps workers of the present template from serving: the trouble that most of them have, the first of
        equals by name; else that of any other worker.
        """
        for group in (self.current, self.alive):
            found = [each.trouble for each in group if each.trouble is not None and not each.ready]
            if found:
                return max(sorted(set(found), key=lambda each: (each.reason, each.message)), key=found.count)
        return None


def census(
    pool: Pool,
    pods: tuple[Object, ...],
    component: str,
    template: Object | None,
    *,
    reports: Mapping[str, WorkerReport],
    look: Look,
) -> Census:
    """Count a component's pods. `template` is the present one, None where there is none."""
    mine = [pod for pod in pods if is_made_for(pod, pool.name, component)]
    present: str | None = None if template is None else template["metadata"]["annotations"][TEMPLATE]
    members = [_member(pod, present, reports.get(pod["metadata"]["name"]), look) for pod in mine]
    return Census(tuple(sorted(members, key=lambda each: each.name)))


def sidecar_pods(pool: Pool, pods: tuple[Object, ...]) -> list[Object]:
    """Return the pods that have a worker of this pool beside their own containers, and are not over."""
    return [
        pod
        for pod in pods
        if _labels(pod).get(SIDECAR_LABEL) == pool.name
        and pod.get("status", {}).get("phase") not in ("Failed", "Succeeded")
    ]


def _member(pod: Object, template: str | None, report: WorkerReport | None, look: Look) -> Member:
    metadata, phase = pod["metadata"], pod.get("status", {}).get("phase")
    annotations = metadata.get("annotations") or {}
    ending = times.read(metadata.get("deletionTimestamp"))
    ended = phase in ("Failed", "Succeeded")
    ready = condition_of(pod, "Ready").get("status") == "True" and not ended
    started = ready or any(each.get("started") for each in pod.get("status", {}).get("containerStatuses") or ())
    trouble = pod_trouble(pod, look)
    is_stranded = trouble is not None and not started and metadata["name"] in look.misplaced
    return Member(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        ready=ready,
        started=started,
        going=ending is not None,
        failed=(ended or is_stranded) and ending is None,
        current=template is not None and annotations.get(TEMPLATE) == template,
        created=times.read(metadata.get("creationTimestamp")),
        going_since=ending and ending - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0),
        late_at=ending and ending + LATE,
        overdue=ending is not None and look.now >= ending + LATE,
        waits_since=_waits_since(pod),
        trouble=trouble,
        report=report if report and report.uid in ("", metadata.get("uid", "")) else None,
        deletion_cost=annotations.get(DELETION_COST),
    )


LATE = timedelta(seconds=30)
"""How much longer than its grace period a pod may be there: nobody ends a pod of a lost node."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def _waits_since(pod: Object) -> datetime | None:
    scheduled = condition_of(pod, "PodScheduled")
    return times.read(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "False" else None


def _labels(pod: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels
