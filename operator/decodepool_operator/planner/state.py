"""What the planner is given and what it gives back: values alone, so that a whole rollout can be simulated.

`plan(pool, observed, now) -> Plan`. The shell observes, calls it, and carries the answer out in the order of `Plan`'s
fields. Objects are as the API server speaks them, never models: what the planner does not know it must not drop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from decodepool_sizing.facts import ModelFacts

from decodepool_operator.texts import make_printable

Object = dict[str, Any]
"""A Kubernetes object as the API speaks it."""


@dataclass(frozen=True, slots=True)
class Images:
    """What all pools' pods are made with: the project's images, when nodes pull them (None: Kubernetes' own rule), and
    how long a worker may take to start beside reading its file.
    """

    worker: str
    worker_cuda: str
    gateway: str
    operator: str
    pull_policy: str | None = None
    startup_seconds: int = 1800


@dataclass(frozen=True, slots=True)
class Scraping:
    """What every pool's PodMonitor has beside what it selects: labels, by which a Prometheus may select it in turn, and
    the seconds between two scrapes, None for that Prometheus' own.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    interval_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker says at `/v1/capacity`. Bytes by the plan's names (`weight_bytes`, ...), known ones only. Workers
    with equal fingerprints give equal bits; None where it told none.
    """

    pod: str
    uid: str
    sessions_capacity: int
    sessions_active: int
    measured_bytes: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """The model's header has been read. `source` is `resolution.source_key(pool)` of when the reading began."""

    facts: ModelFacts
    source: str


@dataclass(frozen=True, slots=True)
class Resolving:
    """The header is being read. `message` is a sentence that stays the same until something changes."""

    message: str


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The header cannot be read: a CamelCase reason and one line."""

    reason: str
    message: str
    source: str


Resolution = Resolved | Resolving | Unresolved


@dataclass(frozen=True, slots=True)
class Observed:
    """The world around one pool.

    `children`: all that the pool owns, of every kind it makes. `pods`: those with the label `decodepool.dev/pool` or
    `decodepool.dev/sidecar-of` of this pool. `nodes` is None where the operator may not list them. `reports` by pod
    name: a worker that did not answer is missing, which is not zero. `resolution`: what was read of an `http` source,
    None where nothing was asked (other sources are read by a Job, whose pods are in `pods`). `queued` is the sessions
    that wait at the gateways, None where unknown. `faults`: one stable line for each thing that the API refused when
    the last plan was carried out. `operator_namespace`: where the operator itself runs.
    """

    images: Images
    children: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    nodes: tuple[Object, ...] | None = ()
    reports: Mapping[str, WorkerReport] = field(default_factory=dict)
    resolution: Resolution | None = None
    has_pod_monitors: bool = False
    scraping: Scraping = Scraping()
    queued: int | None = None
    faults: tuple[str, ...] = ()
    operator_namespace: str = "default"


@dataclass(frozen=True, slots=True)
class Reference:
    """One object of the pool's namespace. With a `uid`, it is deleted only if it is still that one."""

    api_version: str
    kind: str
    name: str
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell about the pool. Equal ones are folded by the shell. Its texts are made one printable line each,
    whoever wrote them.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str

    def __post_init__(self) -> None:
        make_printable(self, "reason", "message")


@dataclass(frozen=True, slots=True)
class Decision:
    """Why something is done to a pool, or held back, for the operator's log. `before` and `after`: of how many pods."""

    what: Literal["create", "rollout", "scale", "autoscale", "replace", "repair", "hold", "keep"]
    why: str
    before: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, to be done in the order of the fields.

    `annotate`: pod name and the annotations to set, before anything shrinks; a pod that is gone is skipped. `shrink`: a
    live Deployment, and how many pods it is to have whatever becomes of its template. `apply`:
    whole objects by server-side apply, in order; what another manager holds is taken back, a few times. `delete`: in
    the background, absent ones skipped. `replicas`: through the pool's `/scale`, None to leave it. `status`: the whole
    status; write it (replacing) where `writes_status`. `decisions`: the reasons; what lasts is in every plan.
    `look_again_seconds`: plan again at the latest then, None where
    only an event can change anything.
    """

    annotate: tuple[tuple[str, Mapping[str, str]], ...] = ()
    shrink: tuple[Reference, int] | None = None
    apply: tuple[Object, ...] = ()
    delete: tuple[Reference, ...] = ()
    replicas: int | None = None
    status: Object = field(default_factory=dict)
    writes_status: bool = False
    events: tuple[Event, ...] = ()
    decisions: tuple[Decision, ...] = ()
    look_again_seconds: float | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be written."""
        return not (self.changes_more_than_status or self.writes_status)

    @property
    def changes_more_than_status(self) -> bool:
        """Whether anything is to be written beside the pool's status."""
        sized = self.shrink is not None or self.replicas is not None
        return bool(self.annotate or sized or self.apply or self.delete)
