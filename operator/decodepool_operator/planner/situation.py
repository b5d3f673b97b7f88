"""All that is known of a pool at one moment, worked out once, for the objects, the status and the conditions alike."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from decodepool_sizing.facts import ModelFacts

from decodepool_operator.names import COMPONENT_LABEL, GATEWAY, READER, WORKER, is_owned
from decodepool_operator.planner.autoscaling import Wish, wish
from decodepool_operator.planner.capacity import Capacity, planned_for, refused_model
from decodepool_operator.planner.census import Census, census
from decodepool_operator.planner.devices import Refused
from decodepool_operator.planner.differences import stamped
from decodepool_operator.planner.nodes import lost, misplaced
from decodepool_operator.planner.objects.common import template_digest
from decodepool_operator.planner.objects.gateway import gateway_deployment, gateway_template, renewed_account
from decodepool_operator.planner.objects.reader_job import reader_job
from decodepool_operator.planner.objects.worker import worker_deployment, worker_template
from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.resolution import Reading, by_job, known_facts, located
from decodepool_operator.planner.rollout import (
    Failures,
    Marks,
    deletion_costs,
    failures,
    held_replicas,
    reports_due,
    unavailable_workers,
    unmarked,
)
from decodepool_operator.planner.state import Object, Observed, Resolved, Resolving, Unresolved
from decodepool_operator.planner.troubles import Look

Key = tuple[str, str]
"""Kind and name."""


@dataclass(frozen=True)
class Situation:
    """A pool, the world around it, and what follows from both.

    `facts` None: the model is not known. `capacity` None: not planned, yet or because the workers' engine refuses the
    model (`refused_model`). `worker` and `gateway` are the Deployments as they should be, None where nothing is to be
    changed. `costs` have to be known to the ReplicaSet controller before it is told to shrink: until they are, nothing
    shrinks, and neither before `silence` is over. `shrinks_to`: the size that the live workers' Deployment is given by
    itself, None where it is not: whatever becomes of a template keeps no worker that is not wanted.
    """

    pool: Pool
    observed: Observed
    now: datetime
    live: dict[Key, Object]
    reading: Reading
    facts: ModelFacts | None
    capacity: Capacity | Refused | None
    workers: Census
    gateways: Census
    worker: Object | None
    gateway: Object | None
    shrinks_to: int | None
    costs: list[Marks]
    silence: datetime | None
    failing: Failures | None
    gateways_failing: Failures | None
    wish: Wish

    @property
    def wanted(self) -> int:
        """Workers that the spec asks for."""
        return 0 if self.pool.spec.suspend else self.pool.spec.replicas

    @property
    def planned(self) -> Capacity | None:
        """The plan, where there is one."""
        return self.capacity if isinstance(self.capacity, Capacity) else None

    @property
    def live_worker(self) -> Object | None:
        """The workers' Deployment as it is."""
        return self.live.get(("Deployment", self.pool.child(WORKER)))

    @property
    def all_ready(self) -> bool:
        """Whether there are just the workers that are wanted, all of the present template and ready."""
        return all_ready(self.workers, self.wanted) and self.planned is not None


def understand(pool: Pool, observed: Observed, now: datetime) -> Situation:
    """Work out all that follows from what was observed."""
    live = {(each["kind"], each["metadata"]["name"]): each for each in observed.children}
    reading = _reading(pool, observed, live, now)
    facts = reading.resolution.facts if isinstance(reading.resolution, Resolved) else None
    capacity = _capacity(pool, observed, facts)
    template = _worker_template(pool, observed, facts, capacity)
    nodes = observed.nodes or ()
    refused = capacity.refused if isinstance(capacity, Capacity) else ()
    look = Look(pool.name, now, lost(nodes), misplaced(observed.pods, nodes, refused))
    gateway, gateways, gateways_failing = _gateways(pool, observed, live, look, is_wanted=template is not None)
    workers = census(pool, observed.pods, WORKER, template, reports=observed.reports, look=look)
    wanted = 0 if pool.spec.suspend else pool.spec.replicas
    failing = failures(pool, WORKER, workers, now, all_ready=all_ready(workers, wanted))
    there = _live_replicas(live, pool, WORKER)
    replicas = held_replicas(wanted, there, workers, failing, now) if template else wanted
    costs = deletion_costs(workers, there, replicas)
    silence = reports_due(pool, workers, now) if 0 < replicas < min(there, len(workers.alive)) else None
    waits = silence is not None or unmarked(costs, observed.faults)
    worker = template and _worker(pool, template, workers, there if waits else replicas, now)
    sessions = capacity.plan.sessions if isinstance(capacity, Capacity) else None
    return Situation(
        pool=pool,
        observed=observed,
        now=now,
        live=live,
        reading=reading,
        facts=facts,
        capacity=capacity,
        workers=workers,
        gateways=gateways,
        worker=worker,
        gateway=gateway,
        shrinks_to=None if waits else _shrinks_to(pool, worker, live, wanted),
        costs=[] if silence else costs,
        silence=silence,
        failing=failing,
        gateways_failing=gateways_failing,
        wish=wish(pool, workers, sessions, observed.queued, now),
    )


def _worker(pool: Pool, template: Object, workers: Census, replicas: int, now: datetime) -> Object:
    unavailable = unavailable_workers(workers, now)
    return stamped(worker_deployment(pool, template, replicas=replicas, unavailable=unavailable))


def _shrinks_to(pool: Pool, worker: Object | None, live: dict[Key, Object], wanted: int) -> int | None:
    """Failures shrink nothing here: without the template, what they took could not be given back."""
    there = live.get(("Deployment", pool.child(WORKER)))
    if there is None or not is_owned(there, pool.uid) or wanted >= _live_replicas(live, pool, WORKER):
        return None
    if worker is None:
        return None if pool.spec.suspend else wanted  # where it is suspended, the whole Deployment goes
    return None if template_digest(worker) == template_digest(there) else wanted


def _gateways(
    pool: Pool, observed: Observed, live: dict[Key, Object], look: Look, *, is_wanted: bool
) -> tuple[Object | None, Census, Failures | None]:
    """Return the gateways' Deployment as it should be, its pods, and how they fail."""
    template = _gateway_template(pool, observed, live, look) if is_wanted else None
    pods = census(pool, observed.pods, GATEWAY, template, reports={}, look=look)
    wanted = pool.spec.gateway.replicas
    failing = failures(pool, GATEWAY, pods, look.now, all_ready=all_ready(pods, wanted))
    replicas = held_replicas(wanted, _live_replicas(live, pool, GATEWAY), pods, failing, look.now)
    made = stamped(gateway_deployment(pool, template, replicas=replicas)) if template else None
    return made, pods, failing


def _gateway_template(pool: Pool, observed: Observed, live: dict[Key, Object], look: Look) -> Object:
    pods = census(pool, observed.pods, GATEWAY, None, reports={}, look=look)
    name = pool.child(GATEWAY)
    account, there = live.get(("ServiceAccount", name)), live.get(("Deployment", name))
    renewed = renewed_account(account, there, [each.created for each in pods.alive])
    return gateway_template(pool, observed.images, renewed)


def _live_replicas(live: dict[Key, Object], pool: Pool, component: str) -> int:
    there = live.get(("Deployment", pool.child(component)), {})
    replicas: int = there.get("spec", {}).get("replicas", 0)
    return replicas


def all_ready(pods: Census, wanted: int) -> bool:
    """Say whether there are just the pods that are wanted, of the present template and ready."""
    return len(pods.alive) == len(pods.current_ready) == wanted


def _reading(pool: Pool, observed: Observed, live: dict[Key, Object], now: datetime) -> Reading:
    known = known_facts(pool.raw)
    job = live.get(("Job", pool.child(READER)))
    if known is not None:
        return Reading(Resolved(known, pool.source), discards=job is not None)
    if pool.spec.model.source.http is None:
        return by_job(pool.raw, stamped(reader_job(pool, observed.images)), job, observed.pods, now)
    told = observed.resolution
    if isinstance(told, Resolved | Unresolved) and told.source != pool.source:
        told = None
    if isinstance(told, Unresolved):
        told = located(pool.raw, told)
    return Reading(told or Resolving("the file's header is read from its URL"), discards=job is not None)


def _capacity(pool: Pool, observed: Observed, facts: ModelFacts | None) -> Capacity | Refused | None:
    """A refusal waits for the reader's pod to be gone: where it is told, the pool has no pods."""
    if facts is None or refused_model(pool, facts):
        return None
    found = planned_for(pool, facts, observed.nodes)
    readers = any((pod["metadata"].get("labels") or {}).get(COMPONENT_LABEL) == READER for pod in observed.pods)
    return None if isinstance(found, Refused) and readers else found


def _worker_template(
    pool: Pool, observed: Observed, facts: ModelFacts | None, capacity: Capacity | Refused | None
) -> Object | None:
    if facts is None or not isinstance(capacity, Capacity):
        return None
    return worker_template(pool, capacity, observed.images, facts.file_bytes)
