"""What the pool's objects have in common: whose they are, and what a container may do."""

from __future__ import annotations

from typing import Any

from decodepool_sizing.manifest import API_VERSION

from decodepool_operator.planner.differences import digest
from decodepool_operator.planner.pools import Pool, labels_of, selector_of
from decodepool_operator.planner.state import Images, Object

USER_ID = 65532
"""The user that the project's images run as."""

TEMPLATE = "decodepool.dev/template"
"""Annotation of a pod: the digest of the template it was made from."""


def template_digest(deployment: Object) -> str | None:
    """Return the digest of the template that a Deployment has; None where somebody took it away."""
    annotations: dict[str, str] = deployment["spec"]["template"]["metadata"].get("annotations") or {}
    return annotations.get(TEMPLATE)


PORT_NAME = "http"
MODELS_FOLDER = "/models"
KEYS_FOLDER = "/keys"
KEYS_FILE = "keys"
TMP_MOUNT: Object = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - the pod's own
STOP_DELAY_SECONDS = 2
"""Between a pod's leaving its Services and its being told to end: so long clients may still be sent to it."""

STOP_MARGIN_SECONDS = 15
"""After the drain: to write last events, free memory and end."""

CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What the restricted profile asks for. Volumes belong to the group, so that a cache can be written."""

SIGNALS: Object = {"shareProcessNamespace": True}
"""In a process namespace of its own a container is process 1, for which the kernel drops what it has no handler for:
told to end while Python still imports, it would go on, with its GPU, until it is killed after the whole drain.
"""


def made(pool: Pool, api_version: str, kind: str, name: str, component: str, **parts: Any) -> Object:
    """Return an object that belongs to the pool: it goes when the pool goes."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": "DecodePool",
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": name,
        "namespace": pool.namespace,
        "labels": labels_of(pool.name, component),
        "ownerReferences": [owner],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **parts}


def deployment(
    pool: Pool, component: str, *, replicas: int, template: Object, surge: int, unavailable: int, deadline_seconds: int
) -> Object:
    """Return a component's Deployment. Its pods carry the digest of their own template."""
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    spec = {
        "replicas": replicas,
        "paused": False,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": deadline_seconds,
        "selector": {"matchLabels": selector_of(pool.name, component)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
        "template": template,
    }
    return made(pool, "apps/v1", "Deployment", pool.child(component), component, spec=spec)


def pod_template(labels: dict[str, str], annotations: dict[str, str], spec: Object) -> Object:
    """Return a pod template that names itself by its digest."""
    spec = {**SIGNALS, **spec}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}
    annotations = {**annotations, TEMPLATE: digest(template)}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def container(name: str, image: str, images: Images, args: list[str], **parts: Any) -> Object:
    """Return a container that may do nothing but run; its last line on stderr is what it dies of."""
    base: Object = {
        "name": name,
        "image": image,
        "args": args,
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if images.pull_policy:
        base["imagePullPolicy"] = images.pull_policy
    return {**base, **{key: value for key, value in parts.items() if value}}


def http_probe(path: str, *, period_seconds: int, failures: int) -> Object:
    """Return a probe of one path. Five seconds is far beyond what an answer takes on a busy worker."""
    return {
        "httpGet": {"path": path, "port": PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def deadly_probe(path: str, *, period_seconds: int, failures: int) -> Object:
    """Return a probe that ends the container. It hangs, so nothing is gained by waiting for its streams to end."""
    probe = http_probe(path, period_seconds=period_seconds, failures=failures)
    return {**probe, "terminationGracePeriodSeconds": STOP_MARGIN_SECONDS}


def pre_stop() -> Object:
    """Return what keeps a pod serving until everybody has heard that it leaves.

    At SIGTERM a worker or gateway refuses what is new and drains what runs; the sleep is before that, since whoever has
    not heard yet would be refused. The kubelet itself sleeps, which it does from Kubernetes 1.30 on.
    """
    return {"preStop": {"sleep": {"seconds": STOP_DELAY_SECONDS}}}


def grace_seconds(pool: Pool) -> int:
    """Return how long a pod has from being deleted to being killed: more than it needs to drain."""
    return pool.spec.drain.timeout_seconds + STOP_DELAY_SECONDS + STOP_MARGIN_SECONDS


def key_volume(pool: Pool) -> list[Object]:
    """Return the volume of the pool's API keys; none where anybody may use the pool."""
    if pool.spec.auth is None:
        return []
    secret = pool.spec.auth.secret_ref
    items = [{"key": secret.key, "path": KEYS_FILE}]
    return [{"name": "keys", "secret": {"secretName": secret.name, "items": items}}]


def key_mount(pool: Pool) -> list[Object]:
    """Return the mount of `key_volume`."""
    return [{"name": "keys", "mountPath": KEYS_FOLDER, "readOnly": True}] if pool.spec.auth else []
