"""Proof that the operator sees: a heartbeat that it writes must come back through its own watch.

A watch can go silent without an error, while the process lives and its port answers. So liveness is not that the port
answers: it is that a Lease written every few seconds is seen again, that the audit finds nothing which the watches kept
to themselves, and that no look at a pool lasts for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from decodepool_operator.api.client import Api
from decodepool_operator.api.faults import ApiFault
from decodepool_operator.api.kinds import LEASES
from decodepool_operator.names import COMPONENT_LABEL, NAME_LABEL, PRODUCT_NAME
from decodepool_operator.planner.state import Object
from decodepool_operator.shell.metrics import Metrics

LONGEST_LOOK_SECONDS = 900.0
"""After which a look at a pool is a hang: every request in it has its own, far shorter, limit."""
BLIND_AUDITS = 2
"""Audits in a row that found missed changes of one kind: its watch is dead, not late."""
MOST_CONNECTIONS = 64
"""To probes and metrics, each of one request. All of them may be slow to take an exposition."""

log = logging.getLogger(__name__)


@dataclass
class Health:
    """What is known of the operator's own state. Times are of a monotonic clock, in seconds."""

    blind_limit_seconds: float
    clock: Callable[[], float] = time.monotonic
    longest_look_seconds: Callable[[], float] = lambda: 0.0
    started: bool = False
    blind_audits: dict[str, int] = field(default_factory=dict)
    seen_at: float = 0.0

    def __post_init__(self) -> None:
        """Begin to count."""
        self.seen_at = self.clock()

    @property
    def unseen_seconds(self) -> float:
        """How long ago a heartbeat was seen."""
        return self.clock() - self.seen_at

    def begin(self) -> None:
        """Note that everything has been listed: from now on heartbeats must come back."""
        self.started, self.seen_at = True, self.clock()

    def saw_heartbeat(self) -> None:
        """Note that a heartbeat came back."""
        self.seen_at = self.clock()

    def audited(self, kind: str, missed: int) -> None:
        """Note how many changes of a kind the watches had kept to themselves."""
        self.blind_audits[kind] = self.blind_audits.get(kind, 0) + 1 if missed else 0

    def troubles(self) -> list[str]:
        """Return why the operator should be restarted: nothing while it is well, and nothing for heartbeats that are
        not seen before the first listing. An API server that is away then is not brought back by a restart.
        """
        found = []
        if self.started and self.unseen_seconds > self.blind_limit_seconds:
            found.append(f"no heartbeat has come back through the watch for {self.unseen_seconds:.0f} s")
        blind = [kind for kind, count in self.blind_audits.items() if count >= BLIND_AUDITS]
        found += [f"the watch of {kind} keeps changes to itself" for kind in blind]
        if self.longest_look_seconds() > LONGEST_LOOK_SECONDS:
            found.append(f"a look at a pool lasts {self.longest_look_seconds():.0f} s")
        return found


@dataclass(frozen=True)
class Identity:
    """Where the heartbeat is, and whose it is."""

    namespace: str
    name: str
    holder: str


class Heartbeat:
    """Writes the Lease, and recognises it when it comes back."""

    def __init__(
        self, api: Api, identity: Identity, health: Health, threads: Executor, also: Iterable[str] = ()
    ) -> None:
        """`also`: namespaces in which it beats besides, for other operators to see. It looks for none of these."""
        self._api = api
        self._identity = identity
        self._beating = (identity, *(replace(identity, namespace=each) for each in also if each != identity.namespace))
        self._health = health
        self._threads = threads

    async def run(self, period_seconds: float) -> None:
        """Beat for ever. A beat that cannot be written is not seen either: that is told by `Health`."""
        failing = False
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._beat)
                failing = False
            except ApiFault as fault:
                if not failing:
                    log.warning("the heartbeat cannot be written", extra={"fields": {"fault": fault.message}})
                failing = True
            await asyncio.sleep(period_seconds)

    def _beat(self) -> None:
        for each in self._beating:
            self._api.apply(lease(each, datetime.now(UTC)), force=True)

    def saw(self, body: Mapping[str, Any]) -> None:
        """Take a Lease that the watch tells of: ours counts, wherever others of its name are."""
        metadata, spec = body["metadata"], body.get("spec") or {}
        if Identity(metadata.get("namespace", ""), metadata["name"], spec.get("holderIdentity", "")) == self._identity:
            self._health.saw_heartbeat()


def lease(identity: Identity, now: datetime) -> Object:
    """Return the heartbeat as the API takes it."""
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.name,
        "metadata": {
            "name": identity.name,
            "namespace": identity.namespace,
            "labels": {NAME_LABEL: PRODUCT_NAME, COMPONENT_LABEL: "operator"},
        },
        "spec": {"holderIdentity": identity.holder, "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
    }


def application(health: Health, metrics: Metrics) -> web.Application:
    """Return the server of probes and metrics."""

    async def healthz(_: web.Request) -> web.Response:
        troubles = health.troubles()
        return web.json_response({"status": "; ".join(troubles) or "ok"}, status=503 if troubles else 200)

    async def readyz(_: web.Request) -> web.Response:
        text = "ready" if health.started else "the first listing has not ended"
        return web.json_response({"status": text}, status=200 if health.started else 503)

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @web.middleware
    async def ends(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = await handler(request)
        answer.force_close()
        return answer

    app = web.Application(middlewares=[ends])
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition)
    return app
