"""A pod with a decode worker beside its application: a pure function of the pod and its pool.

The worker is a native sidecar (an init container that is restarted always), planned and built as the pool's own workers
are. It starts after the pod's other init containers and before its application, answers on localhost:8000, and ends
after the application. What it brings is named `decodepool...`, so that nothing of the pod's own is touched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

from decodepool_sizing.errors import BadManifest
from decodepool_sizing.facts import ModelFacts

from decodepool_operator.names import POOL_LABEL, SIDECAR_LABEL, WORKER_PORT
from decodepool_operator.planner import nodes
from decodepool_operator.planner.capacity import Capacity, planned_for
from decodepool_operator.planner.devices import Refused
from decodepool_operator.planner.objects.common import POD_SECURITY
from decodepool_operator.planner.objects.model_files import model_files
from decodepool_operator.planner.objects.worker import (
    CONTAINER_NAME,
    worker_container,
    worker_image,
    worker_volumes,
)
from decodepool_operator.planner.pools import Pool, read_pool
from decodepool_operator.planner.resolution import known_facts
from decodepool_operator.planner.state import Images, Object

PREFIX = "decodepool-"
DRAIN_SECONDS = 5
"""The application has ended by then, and with it whoever could listen."""

TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - where Kubernetes mounts one
NO_TOKEN: Object = {"name": "decodepool-no-token", "mountPath": TOKEN_FOLDER, "readOnly": True}
"""Mounted over where the pod's own token would be: a worker has no business with the application's identity."""

CONTAINER_KEYS = ("runAsNonRoot", "runAsUser", "runAsGroup", "seccompProfile")
"""What a pool's pods say of all their containers has to be said of this one alone."""


@dataclass(frozen=True)
class Injected:
    """The operations of a JSON patch; none for a pod that asks for nothing, or has its sidecar."""

    patch: tuple[Object, ...]


@dataclass(frozen=True)
class Denied:
    """Why the pod may not be made: one line for whoever makes it."""

    message: str


class _CannotInject(Exception):  # noqa: N818 - the text of a `Denied`
    pass


def pool_name(pod: Object) -> str | None:
    """Return the pool whose sidecar a pod asks for."""
    name: str | None = (pod["metadata"].get("labels") or {}).get(SIDECAR_LABEL)
    return name


def inject(
    pod: Object, raw_pool: Object | None, images: Images, seen_nodes: tuple[Object, ...] | None
) -> Injected | Denied:
    """Return what makes a pod one with its pool's sidecar, or why there cannot be one."""
    name = pool_name(pod)
    if name is None or _has_sidecar(pod):
        return Injected(())
    try:
        pool, capacity, facts = _planned(raw_pool, seen_nodes)
        return Injected(tuple(_patch(pod, with_sidecar(pod, pool, capacity, images, file_bytes=facts.file_bytes))))
    except _CannotInject as fault:
        return Denied(f"the sidecar of DecodePool {name}: {fault}")


def with_sidecar(pod: Object, pool: Pool, capacity: Capacity, images: Images, *, file_bytes: int) -> Object:
    """Return a pod with a worker of the pool."""
    files = model_files(pool, images, worker_image(pool, images))
    worker = worker_container(pool, capacity, images, files, file_bytes)
    own = [*(_as_own(each, f"{PREFIX}{each['name']}") for each in files.init), _as_sidecar(worker)]
    made = copy.deepcopy(pod)
    labels = made["metadata"].setdefault("labels", {})
    # Seen by the operator's watch of pods, selected by none of the pool's Services.
    labels.setdefault(POOL_LABEL, "")
    spec = made["spec"]
    no_token: Object = {"name": NO_TOKEN["name"], "emptyDir": {}}
    volumes = [*(_renamed(each) for each in worker_volumes(pool, files)), no_token]
    _check_free(spec, own, volumes)
    spec["initContainers"] = [*(spec.get("initContainers") or ()), *own]
    spec["volumes"] = [*(spec.get("volumes") or ()), *volumes]
    _place(spec, pool, capacity)
    _carry_over(spec, pool)
    return made


def _check_free(spec: Object, own: Iterable[Object], volumes: Iterable[Object]) -> None:
    """Refuse a pod that has a name already which the sidecar brings, or the port: it would not start, or not answer."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    for what, theirs, ours in (("container", containers, own), ("volume", spec.get("volumes") or (), volumes)):
        taken = {each["name"] for each in theirs} & {each["name"] for each in ours}
        if taken:
            raise _CannotInject(f"the pod has a {what} named {min(taken)}, as the sidecar has: name it otherwise")
    for container in containers:
        if any(_is_workers(port) for port in container.get("ports") or ()):
            raise _CannotInject(f"container {container['name']} has port {WORKER_PORT}, which is the sidecar's")


def _is_workers(port: Object) -> bool:
    return bool(port.get("containerPort") == WORKER_PORT and port.get("protocol", "TCP") == "TCP")


def _carry_over(spec: Object, pool: Pool) -> None:
    """Give the pod what the worker's image and device need of a pod as a whole."""
    given = pool.spec.template
    if given is None:
        return
    secrets = [*(spec.get("imagePullSecrets") or ())]
    secrets += [dict(each) for each in given.image_pull_secrets if dict(each) not in secrets]
    if secrets:
        spec["imagePullSecrets"] = secrets
    wanted, has = given.runtime_class_name, spec.get("runtimeClassName")
    if wanted and has not in (None, wanted):
        raise _CannotInject(f"the pod's runtimeClassName is {has}, the pool's {wanted}")
    if wanted:
        spec["runtimeClassName"] = wanted


def _planned(raw_pool: Object | None, seen: tuple[Object, ...] | None) -> tuple[Pool, Capacity, ModelFacts]:
    if raw_pool is None:
        raise _CannotInject("there is no such pool in this namespace")
    facts = known_facts(raw_pool)
    if facts is None:
        raise _CannotInject(f"its model is not known yet{_condition(raw_pool, 'ModelResolved')}")
    try:
        pool = read_pool(raw_pool)
    except BadManifest as fault:
        raise _CannotInject(f"its spec is not one this operator knows: {fault.faults[0]}") from None
    capacity = planned_for(pool, facts, seen)
    if isinstance(capacity, Refused):
        raise _CannotInject(f"{capacity.reason}: {capacity.message}")
    return pool, capacity, facts


def _condition(raw_pool: Object, kind: str) -> str:
    for condition in (raw_pool.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind and condition.get("message"):
            return f": {condition['message']}"
    return ""


def _has_sidecar(pod: Object) -> bool:
    """Say whether a pod has its sidecar: an init container that only has the name is something else."""
    return any(
        each["name"] == CONTAINER_NAME and each.get("restartPolicy") == "Always"
        for each in pod["spec"].get("initContainers") or ()
    )


def _as_sidecar(worker: Object) -> Object:
    """Return a worker's container as a native sidecar. Its preStop went with the Services it would have left."""
    made = _as_own({**worker, "restartPolicy": "Always"}, CONTAINER_NAME)
    made.pop("lifecycle", None)
    made["args"] = [
        f"--drain-timeout={DRAIN_SECONDS}" if argument.startswith("--drain-timeout=") else argument
        for argument in made["args"]
    ]
    # Policies cannot say this: one that leaves the application's own ports open would open them where another keeps
    # them closed.
    made["args"].append("--local-clients")
    port_name = made["ports"][0]["name"]
    made["ports"] = [{**made["ports"][0], "name": CONTAINER_NAME}]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if made[probe]["httpGet"]["port"] == port_name:
            made[probe] = {**made[probe], "httpGet": {**made[probe]["httpGet"], "port": CONTAINER_NAME}}
    return made


def _as_own(container: Object, name: str) -> Object:
    """Return a container that brings its security along, and mounts volumes by their names in this pod."""
    security = {key: value for key, value in POD_SECURITY.items() if key in CONTAINER_KEYS}
    return {
        **container,
        "name": name,
        "securityContext": {**security, **container.get("securityContext", {})},
        "volumeMounts": [*(_renamed(each) for each in container.get("volumeMounts", ())), NO_TOKEN],
    }


def _renamed(named: Object) -> Object:
    return {**named, "name": PREFIX + named["name"]}


def _place(spec: Object, pool: Pool, capacity: Capacity) -> None:
    """Let the pod onto the pool's nodes. Where it wants others, it is refused rather than never scheduled."""
    selector = spec.get("nodeSelector") or {}
    for key, value in nodes.node_selector(pool).items():
        if selector.get(key, value) != value:
            raise _CannotInject(f"the pod's nodeSelector wants {key}={selector[key]}, the pool's {value}")
        selector = {**selector, key: value}
    if selector:
        spec["nodeSelector"] = selector
    tolerations = [*(spec.get("tolerations") or ())]
    tolerations += [each for each in nodes.tolerations(pool) if each not in tolerations]
    if tolerations:
        spec["tolerations"] = tolerations
    affinity = spec.get("affinity") or nodes.affinity(pool)
    if pool.kind == "cuda":
        affinity = nodes.off_gpus(affinity, capacity.refused)
    if affinity:
        spec["affinity"] = affinity


def _patch(before: Object, after: Object) -> Iterable[Object]:
    """Yield the operations that make the one object the other, a whole field each."""
    for parent in ("metadata", "spec"):
        for key, value in after[parent].items():
            if before[parent].get(key) != value:
                yield {"op": "add", "path": f"/{parent}/{key}", "value": value}
