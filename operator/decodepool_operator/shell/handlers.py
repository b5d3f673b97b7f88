"""What kopf is used for: watching. Its handlers keep the store and make pools due; nothing else happens in them.

Only raw events: these need no finalizer, no annotation and no patch of any object. kopf's indexes, which would tell
when all is listed, are not used: while they fill, each object that comes wakes all that came before, and ten thousand
took minutes. The audit tells it instead (`Audit.caught_up`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import kopf

from decodepool_operator.api.kinds import CHILDREN, LEASES, NODES, PODS, POOLS, Kind
from decodepool_operator.names import PoolKey
from decodepool_operator.shell.metrics import Metrics
from decodepool_operator.shell.store import Store, pools_of
from decodepool_operator.shell.work_queue import WorkQueue

SERVER_TIMEOUT_SECONDS = 240
"""After which the API server ends a watch by itself, and it is begun anew where it stopped."""
INACTIVITY_SECONDS = 70.0
"""A watch that tells nothing for so long, not even the bookmark of each minute, is dead and begun anew."""
CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 30.0
ERROR_DELAYS_SECONDS = (1, 1, 2, 3, 5, 8, *(10,) * 13)
"""Two and a half minutes of refusals before the process ends, and its next start tells why. No gap is long, so that an
API server that is back is followed within seconds.
"""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

log = logging.getLogger(__name__)


class Watches:
    """Takes in what the watches tell."""

    def __init__(self, store: Store, queue: WorkQueue, metrics: Metrics) -> None:
        self.store = store
        self._queue = queue
        self.metrics = metrics
        self._listeners: list[Callable[[Mapping[str, Any]], None]] = []
        self._pod_listeners: list[Callable[[PoolKey], None]] = []

    def on_pod(self, listener: Callable[[PoolKey], None]) -> None:
        """Call somebody with the pool of each pod that changes."""
        self._pod_listeners.append(listener)

    def on_lease(self, listener: Callable[[Mapping[str, Any]], None]) -> None:
        """Call somebody with each state of the heartbeat."""
        self._listeners.append(listener)

    def saw(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Take an object that is, or was changed."""
        self.metrics.events_seen.labels(kind.name).inc()
        before = self.store.get(kind, body["metadata"].get("namespace", ""), body["metadata"]["name"])
        if self.store.put(kind, body):
            self._wake(kind, body, before)

    def lost(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Take it that an object was deleted, or is no longer labelled as what is watched."""
        if self.store.remove(kind, body):
            self._wake(kind, body, None)

    def beat(self, body: Mapping[str, Any]) -> None:
        """Take a state of the heartbeat."""
        for listener in self._listeners:
            listener(body)

    def _wake(self, kind: Kind, body: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        if kind is POOLS:
            self._wake_pool((body["metadata"]["namespace"], body["metadata"]["name"]), body, before)
        elif kind is NODES:
            if before is None or _offer(before) != _offer(body):
                for key in self.store.pools():
                    self._queue.add(key)
        else:
            for key in pools_of(kind, body):
                self._queue.add(key)
                for listener in self._pod_listeners if kind is PODS else ():
                    listener(key)

    def _wake_pool(self, key: PoolKey, body: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        if before is None or before["metadata"].get("generation") != body["metadata"].get("generation"):
            self._queue.hurry(key)
        else:
            self._queue.add(key)


def registry_of(watches: Watches, kinds: Iterable[Kind]) -> kopf.OperatorRegistry:
    """Return kopf's handlers for the kinds, and for the heartbeat."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(login)
    for kind in kinds:
        _register(registry, watches, kind)

    @kopf.on.event(LEASES.api_version, LEASES.plural, registry=registry)
    async def heartbeat(event: Any, **_: Any) -> None:
        watches.beat(event["object"])

    return registry


def _register(registry: kopf.OperatorRegistry, watches: Watches, kind: Kind) -> None:
    @kopf.on.event(kind.api_version, kind.plural, id=kind.plural, registry=registry)
    async def event(event: Any, **_: Any) -> None:
        if event["type"] == "DELETED":
            watches.lost(kind, event["object"])
        else:
            watches.saw(kind, event["object"])


def watched_kinds(*, reads_nodes: bool) -> tuple[Kind, ...]:
    """Return the kinds that are watched."""
    return (POOLS, PODS, *CHILDREN, *((NODES,) if reads_nodes else ()))


def kopf_settings(kinds: Iterable[Kind], lease_name: str) -> kopf.OperatorSettings:
    """Return kopf's settings: no events posted, no CRDs and namespaces scanned, every wait bounded."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.server_timeout = SERVER_TIMEOUT_SECONDS
    settings.watching.client_timeout = SERVER_TIMEOUT_SECONDS + 30
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.error_backoffs = ERROR_DELAYS_SECONDS
    settings.process.ultimate_exiting_timeout = 20
    for kind in kinds:
        if kind.selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kind.selector
    settings.watching.field_selectors[LEASES.group, LEASES.version, LEASES.plural] = f"metadata.name={lease_name}"
    return settings


def login(settings: kopf.OperatorSettings, logger: Any, **_: Any) -> kopf.ConnectionInfo | None:
    """Return how to reach the API server: by the pod's service account, its token as it is now, or by a kubeconfig."""
    if not (SERVICE_ACCOUNT / "token").exists():
        return kopf.login_with_kubeconfig(settings=settings, logger=logger)
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return kopf.ConnectionInfo(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
        token=(SERVICE_ACCOUNT / "token").read_text(encoding="utf-8").strip(),
    )


def _offer(node: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what a node offers to pods: what a plan may depend on. Heartbeats are not among it."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = [c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"]
    return (
        node["metadata"].get("labels"),
        spec.get("taints"),
        spec.get("unschedulable"),
        status.get("allocatable"),
        status.get("capacity"),
        ready,
    )
