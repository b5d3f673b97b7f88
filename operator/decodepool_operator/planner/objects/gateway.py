"""The gateways' Deployment: stateless, so a new one comes before the old one goes."""

from __future__ import annotations

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

RESOURCES: Object = {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}}
"""A gateway is 60 MB, and what its streams take."""

REPLICAS = 2
"""Always: were there as many as workers ask for, scaling workers down would end a gateway, and the streams through it
of workers that stay.
"""


def gateway_deployment(pool: Pool, images: Images, *, replicas: int = REPLICAS) -> Object:
    """Return the gateway's Deployment."""
    return deployment(
        pool,
        GATEWAY,
        replicas=replicas,
        template=pod_template(labels_of(pool.name, GATEWAY), {}, _spec(pool, images)),
        surge=1,
        unavailable=0,
        deadline_seconds=600,
    )


def _spec(pool: Pool, images: Images) -> Object:
    """Streams run through it, so it has as long to end as a worker."""
    given = pool.spec.template
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
    secrets = [dict(each) for each in given.image_pull_secrets] if given else []
    return {**spec, "imagePullSecrets": secrets} if secrets else spec


def _container(pool: Pool, images: Images) -> Object:
    wanted = {
        "--pool": pool.name,
        "--namespace": pool.namespace,
        "--port": GATEWAY_PORT,
        "--service": pool.child("workers"),
        "--drain-timeout": pool.spec.drain.timeout_seconds,
        "--api-keys": f"{KEYS_FOLDER}/{KEYS_FILE}" if pool.spec.auth else None,
    }
    return container(
        "gateway",
        images.gateway,
        images,
        [f"{name}={value}" for name, value in wanted.items() if value is not None],
        ports=[{"name": PORT_NAME, "containerPort": GATEWAY_PORT, "protocol": "TCP"}],
        resources=RESOURCES,
        volumeMounts=[dict(TMP_MOUNT), *key_mount(pool)],
        startupProbe=deadly_probe("/healthz", period_seconds=2, failures=60),
        readinessProbe=http_probe("/readyz", period_seconds=2, failures=2),
        livenessProbe=deadly_probe("/healthz", period_seconds=10, failures=3),
        lifecycle=pre_stop(),
    )
