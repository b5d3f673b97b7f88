"""The gateways' Deployment: stateless, so a new one comes before the old one goes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from decodepool_operator import times
from decodepool_operator.names import GATEWAY, GATEWAY_PORT
from decodepool_operator.planner.objects.common import (
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
from decodepool_operator.planner.pools import Pool, labels_of, selector_of
from decodepool_operator.planner.state import Images, Object
from decodepool_operator.planner.templates import gateway_resources

RESOURCES: Object = {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}}
"""A gateway is 60 MB, and what its streams take."""

GPU_KEYS = "nvidia.com/"

ACCOUNT = "decodepool.dev/account"
"""Annotation of gateways: the uid of the ServiceAccount that was made anew, so that they had to be too."""


def gateway_deployment(pool: Pool, template: Object, *, replicas: int) -> Object:
    """Return the gateways' Deployment. It has one size whatever workers there are: were it scaled with them, streams of
    those that stay would end.
    """
    return deployment(
        pool,
        GATEWAY,
        replicas=replicas,
        template=template,
        surge=1,
        unavailable=0,
        deadline_seconds=600,
    )


def gateway_template(pool: Pool, images: Images, account: str | None = None) -> Object:
    """Return the template of a gateway's pod. `account`: from `renewed_account`."""
    annotations = {ACCOUNT: account} if account else {}
    return pod_template(labels_of(pool.name, GATEWAY), annotations, _spec(pool, images))


def renewed_account(account: Object | None, live: Object | None, made: Iterable[datetime | None]) -> str | None:
    """Return the uid of the gateways' ServiceAccount, where they hold a token of one before it: it is refused for good.

    `live`: their Deployment, which remembers it; `made`: when each gateway was made. None as long as none is older than
    the account: nothing is restarted but for this.
    """
    since = times.read(account["metadata"].get("creationTimestamp")) if account else None
    if account is not None and since is not None and any(each is not None and each < since for each in made):
        uid: str = account["metadata"]["uid"]
        return uid
    template = live["spec"]["template"] if live else {}
    kept: str | None = (template.get("metadata", {}).get("annotations") or {}).get(ACCOUNT)
    return kept


def _spec(pool: Pool, images: Images) -> Object:
    """Streams run through it, so it has as long to end as a worker."""
    given, gateway = pool.spec.template, pool.spec.gateway
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector_of(pool.name, GATEWAY)},
    }
    spec: Object = {
        "serviceAccountName": pool.child("gateway"),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(pool),
        "securityContext": POD_SECURITY,
        "topologySpreadConstraints": [spread],
        "containers": [_container(pool, images)],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *key_volume(pool)],
    }
    optional = {
        "imagePullSecrets": [dict(each) for each in given.image_pull_secrets] if given else [],
        "tolerations": _tolerations(pool),
        "nodeSelector": dict(gateway.node_selector),
        "priorityClassName": gateway.priority_class_name,
    }
    return {**spec, **{key: value for key, value in optional.items() if value}}


def _tolerations(pool: Pool) -> list[Object]:
    """Return what gateways tolerate: what workers do, save for what keeps others off GPUs. More nodes than without are
    never fewer, so where every node is tainted for a team, its gateways run without a word.
    """
    own, template = pool.spec.gateway.tolerations, pool.spec.template
    if own is not None:
        return [dict(each) for each in own]
    given = template.tolerations if template else []
    return [dict(each) for each in given if not str(each.get("key", "")).startswith(GPU_KEYS)]


def _container(pool: Pool, images: Images) -> Object:
    wanted = {
        "--pool": pool.name,
        "--namespace": pool.namespace,
        "--port": GATEWAY_PORT,
        "--service": pool.child("workers"),
        "--drain-timeout": pool.spec.drain.timeout_seconds,
        "--queue-timeout": pool.spec.gateway.queue_seconds,
        "--api-keys": f"{KEYS_FOLDER}/{KEYS_FILE}" if pool.spec.auth else None,
    }
    return container(
        "gateway",
        images.gateway,
        images,
        [f"{name}={value}" for name, value in wanted.items() if value is not None],
        ports=[{"name": PORT_NAME, "containerPort": GATEWAY_PORT, "protocol": "TCP"}],
        resources=gateway_resources(pool, RESOURCES),
        volumeMounts=[dict(TMP_MOUNT), *key_mount(pool)],
        startupProbe=deadly_probe("/healthz", period_seconds=2, failures=60),
        readinessProbe=http_probe("/readyz", period_seconds=2, failures=2),
        livenessProbe=deadly_probe("/healthz", period_seconds=10, failures=3),
        lifecycle=pre_stop(),
    )
