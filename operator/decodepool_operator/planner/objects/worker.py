"""The workers' Deployment: each pod holds exactly what was planned, and is told so."""

from __future__ import annotations

from decodepool_operator.names import WORKER, WORKER_PORT
from decodepool_operator.planner import nodes
from decodepool_operator.planner.capacity import Capacity
from decodepool_operator.planner.objects.common import (
    CONTAINER_SECURITY,
    KEYS_FILE,
    KEYS_FOLDER,
    POD_SECURITY,
    PORT_NAME,
    TMP_MOUNT,
    container,
    deadly_probe,
    deployment,
    grace_seconds,
    http_probe,
    key_mount,
    key_volume,
    pod_template,
    pre_stop,
)
from decodepool_operator.planner.objects.model_files import ModelFiles, model_files
from decodepool_operator.planner.pools import Pool, labels_of
from decodepool_operator.planner.state import Images, Object
from decodepool_operator.planner.templates import asks_for, merged_resources

CONTAINER_NAME = "decodepool"
CPU_REQUEST = "250m"
"""Little, so that a small cluster takes a pool; the template says what a loaded one needs."""

STARTUP_BYTES_PER_SECOND = 50_000_000
"""The slowest disk that a model is read from: a worker that takes longer, beside its own time, hangs."""

STARTUP_PERIOD_SECONDS = 2

DISK = "ephemeral-storage"
SCRATCH_BYTES = 1 << 30
"""Logs, which a kubelet turns over at 50 MiB a container, kernels compiled for the machine, what debugging writes."""


def worker_deployment(pool: Pool, template: Object, *, replicas: int, unavailable: int) -> Object:
    """Return the workers' Deployment. GPUs are scarce: an old worker goes before a new one comes."""
    probe = template["spec"]["containers"][0]["startupProbe"]
    return deployment(
        pool,
        WORKER,
        replicas=replicas,
        template=template,
        surge=0,
        unavailable=unavailable,
        deadline_seconds=probe["failureThreshold"] * probe["periodSeconds"] + 600,
    )


def worker_template(pool: Pool, capacity: Capacity, images: Images, file_bytes: int) -> Object:
    """Return the template of a worker's pod."""
    files = model_files(pool, images, worker_image(pool, images))
    given = pool.spec.template
    labels = {**(given.labels if given else {}), **labels_of(pool.name, WORKER)}
    annotations = dict(given.annotations) if given else {}
    spec: Object = {
        "serviceAccountName": (given and given.service_account_name) or pool.child("worker"),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(pool),
        "securityContext": POD_SECURITY,
        "nodeSelector": nodes.node_selector(pool),
        "tolerations": nodes.tolerations(pool),
        "affinity": nodes.worker_affinity(pool, capacity.refused),
        "initContainers": list(files.init),
        "containers": [worker_container(pool, capacity, images, files, file_bytes)],
        "volumes": worker_volumes(pool, files),
        **_passed_through(pool),
    }
    return pod_template(labels, annotations, {key: value for key, value in spec.items() if value not in ({}, [], None)})


def worker_container(pool: Pool, capacity: Capacity, images: Images, files: ModelFiles, file_bytes: int) -> Object:
    """Return the container that serves."""
    given = pool.spec.template
    mounts = [
        *files.mounts,
        dict(TMP_MOUNT),
        {"name": "cache", "mountPath": "/cache"},
        *key_mount(pool),
        *([dict(each) for each in given.volume_mounts] if given else []),
    ]
    return container(
        CONTAINER_NAME,
        worker_image(pool, images),
        images,
        worker_arguments(pool, capacity, files.path),
        env=_environment(pool),
        ports=[{"name": PORT_NAME, "containerPort": WORKER_PORT, "protocol": "TCP"}],
        resources=worker_resources(pool, capacity, file_bytes if files.on_node else None),
        volumeMounts=mounts,
        startupProbe=deadly_probe(
            "/readyz",
            period_seconds=STARTUP_PERIOD_SECONDS,
            failures=startup_seconds(file_bytes, images) // STARTUP_PERIOD_SECONDS,
        ),
        readinessProbe=http_probe("/readyz", period_seconds=2, failures=2),
        livenessProbe=deadly_probe("/healthz", period_seconds=10, failures=3),
        lifecycle=pre_stop(),
        securityContext=CONTAINER_SECURITY,
    )


def worker_arguments(pool: Pool, capacity: Capacity, path: str) -> list[str]:
    """Return the arguments that make a worker plan exactly what was planned here."""
    plan = capacity.plan
    wanted = {
        "--context": plan.context_tokens,
        "--sessions": plan.sessions,
        "--kv-type": plan.kv_type.value,
        "--device": plan.device.kind,
        "--memory": capacity.memory_bytes,
        "--cache-reserve": pool.spec.cache_reserve,
        "--drain-timeout": pool.spec.drain.timeout_seconds,
        "--name": pool.name,
        "--host": "0.0.0.0",  # noqa: S104 - a pod's own address; a NetworkPolicy says who may reach it
        "--port": WORKER_PORT,
        "--worker-tag-of": "$(POD_UID)",
        "--api-keys": f"{KEYS_FOLDER}/{KEYS_FILE}" if pool.spec.auth else None,
    }
    options = [f"{name}={value}" for name, value in wanted.items() if value is not None]
    return ["serve", path, *options, "--log-json"]


def worker_image(pool: Pool, images: Images) -> str:
    """Return the image that workers run."""
    given = pool.spec.template.image if pool.spec.template else None
    return given or (images.worker if pool.kind == "cpu" else images.worker_cuda)


def worker_resources(pool: Pool, capacity: Capacity, fetched_bytes: int | None) -> Object:
    """Return what a worker's container asks for: memory that cannot be taken from it, its device, and the node's disk
    for a file that it fetches there: short of disk, a kubelet first evicts pods that use more than they asked for.
    """
    own: Object = {"requests": {"cpu": CPU_REQUEST, "memory": str(capacity.pod_bytes)}, "limits": {}}
    own["limits"]["memory"] = str(capacity.pod_bytes)
    if fetched_bytes is not None and not asks_for(pool, DISK):
        own["requests"][DISK] = str(fetched_bytes + SCRATCH_BYTES)
    if capacity.resource is not None:
        own["limits"][capacity.resource] = own["requests"][capacity.resource] = str(pool.spec.accelerator.count)
    return merged_resources(pool, own)


def worker_volumes(pool: Pool, files: ModelFiles) -> list[Object]:
    """Return the volumes of a worker's pod."""
    scratch: list[Object] = [{"name": name, "emptyDir": {}} for name in ("tmp", "cache")]
    given = pool.spec.template
    return [*files.volumes, *scratch, *key_volume(pool), *([dict(each) for each in given.volumes] if given else [])]


def startup_seconds(file_bytes: int, images: Images) -> int:
    """Return how long a worker may take to load a file."""
    return images.startup_seconds + file_bytes // STARTUP_BYTES_PER_SECOND


def _environment(pool: Pool) -> list[Object]:
    own: list[Object] = [
        {"name": "POD_UID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}},
        {"name": "XDG_CACHE_HOME", "value": "/cache"},
    ]
    names = {each["name"] for each in own}
    given = pool.spec.template.env if pool.spec.template else []
    return [*own, *(dict(each) for each in given if each.get("name") not in names)]


def _passed_through(pool: Pool) -> Object:
    given = pool.spec.template
    if given is None:
        return {}
    return {
        "imagePullSecrets": [dict(each) for each in given.image_pull_secrets],
        "topologySpreadConstraints": [dict(each) for each in given.topology_spread_constraints],
        "priorityClassName": given.priority_class_name,
        "runtimeClassName": given.runtime_class_name,
    }
