"""The parts of a running operator, put together."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import kopf

from decodepool_operator.api.client import Api
from decodepool_operator.api.faults import ApiFault
from decodepool_operator.api.kinds import POD_MONITORS, SECRETS, Kind
from decodepool_operator.connections import Connections
from decodepool_operator.planner.plan import plan
from decodepool_operator.planner.state import Object
from decodepool_operator.shell import health as probes
from decodepool_operator.shell import installed
from decodepool_operator.shell.audit import Audit
from decodepool_operator.shell.carry_out import Carrier
from decodepool_operator.shell.events import Recorder
from decodepool_operator.shell.handlers import Watches, kopf_settings, registry_of, watched_kinds
from decodepool_operator.shell.health import Health, Heartbeat, Identity
from decodepool_operator.shell.metrics import Metrics
from decodepool_operator.shell.observe import World
from decodepool_operator.shell.reconcile import Reconciler, Writers
from decodepool_operator.shell.reports import Reports
from decodepool_operator.shell.resolve import Resolver, read_model
from decodepool_operator.shell.rivals import Rivals
from decodepool_operator.shell.scope import Scope
from decodepool_operator.shell.settings import Settings
from decodepool_operator.shell.store import Store
from decodepool_operator.shell.work_queue import WorkQueue
from decodepool_operator.webhook.injection import Denied, Injected, inject, pool_name
from decodepool_operator.webhook.keeper import Keeper, Place
from decodepool_operator.webhook.server import WebhookServer

T = TypeVar("T")

START_RETRY_SECONDS = 2.0
STOP_SECONDS = 10.0
INSTALLED_CHECK_SECONDS = 600.0
OUTDATED_CHECK_SECONDS = 20.0

log = logging.getLogger(__name__)


class Operator:
    """One operator. `run` ends on SIGTERM, or when one of its parts fails."""

    def __init__(self, settings: Settings, api: Api) -> None:
        self._settings = settings
        self._api = api
        self._threads = ThreadPoolExecutor(2 * settings.workers + 4, thread_name_prefix="api")
        self.metrics = Metrics()
        self.store = Store()
        self.queue = WorkQueue(time.monotonic)
        self.health = Health(settings.blind_limit_seconds, longest_look_seconds=lambda: self.queue.longest_run_seconds)
        self.watches = Watches(self.store, self.queue, self.metrics)
        read = partial(read_model, local_addresses=settings.allow_local_urls)
        resolver = Resolver(self._read_secret, self.queue.add, read)
        reports = Reports(self.store, self._read_secret, self.queue.add)
        self.world = World(settings, self.store, reports, resolver)
        self.watches.on_pod(reports.hurry)
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._scope = Scope(api, settings.namespaces, watched_kinds(reads_nodes=False))
        self._is_rescoped = False

    async def run(self) -> bool:
        """Run until SIGTERM, or until other namespaces can be served: return whether a new operator is to do so. Raises
        what made a part end.
        """
        self._watch_metrics()
        server = await self._serve()
        await self._wait_for_crd()
        await self._wait_for_scope()
        self._notice_crd(await self._in_thread(lambda: installed.crd_notice(self._api)))
        self.world.has_pod_monitors = await self._in_thread(lambda: installed.has_pod_monitors(self._api))
        parts = [asyncio.create_task(part) for part in self._parts()]
        kopf_task = asyncio.create_task(self._watch())
        parts.append(asyncio.create_task(self._when_ready(self._wait_for_signal())))
        try:
            await asyncio.wait([*parts, kopf_task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._stop(parts, kopf_task, server)
        return self._is_rescoped

    def _parts(self) -> list[Coroutine[Any, Any, None]]:
        settings, world = self._settings, self.world
        identity = Identity(settings.heartbeat_namespace, settings.lease, f"{os.uname().nodename}-{os.getpid()}")
        heartbeat = Heartbeat(self._api, identity, self.health, self._threads, settings.namespaces)
        rivals = Rivals(self._api, identity.holder, settings.namespaces or (None,))
        self.watches.on_lease(heartbeat.saw)
        audit = Audit(self._api, self.watches, self.health, self._threads, settings.namespaces or (None,))
        kinds = watched_kinds(reads_nodes=settings.reads_nodes)
        writers = Writers(Carrier(self._api, self.metrics), Recorder(self._api))
        reconciler = Reconciler(world, self.queue, plan, writers, metrics=self.metrics, threads=self._threads)
        return [
            heartbeat.run(settings.heartbeat_seconds),
            *([] if settings.clusterwide else [self._watch_scope()]),
            self._when_ready(self._watch_rivals(rivals)),
            *([self._when_ready(self._webhook().run())] if settings.webhook_service else []),
            self._audit(audit, kinds),
            self._when_ready(self._look_at_installed(audit)),
            self._when_ready(world.reports.run(settings.report_seconds)),
            *(self._when_ready(reconciler.run()) for _ in range(settings.workers)),
        ]

    def _webhook(self) -> WebhookServer:
        settings = self._settings
        host = f"{settings.webhook_service}.{settings.own_namespace}.svc"
        place = Place(settings.own_namespace, settings.webhook_secret, settings.webhook_configuration)
        keeper = Keeper(self._api, place, host)
        return WebhookServer(keeper, self._inject, settings.webhook_port, self._threads)

    def _inject(self, namespace: str, pod: Object) -> Injected | Denied:
        pool = self.store.pool((namespace, pool_name(pod) or ""))
        nodes = self.store.nodes() if self._settings.reads_nodes else None
        outcome = inject(pod, pool, self._settings.images, nodes)
        self.metrics.sidecars.labels("denied" if isinstance(outcome, Denied) else "allowed").inc()
        return outcome

    async def _watch(self) -> None:
        kinds = watched_kinds(reads_nodes=self._settings.reads_nodes)
        await kopf.operator(
            registry=registry_of(self.watches, kinds),
            settings=kopf_settings(kinds, self._settings.lease),
            standalone=True,
            stop_flag=self._stopping,
            clusterwide=self._settings.clusterwide,
            namespaces=self._settings.namespaces,
        )

    async def _wait_for_signal(self) -> None:
        """End once the process is told to. kopf's own handlers, replaced here, wait five seconds for what is ours."""
        told, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        await told.wait()

    async def _when_ready(self, part: Coroutine[Any, Any, None]) -> None:
        """Run a part once everything has been listed: before, what is missing would look deleted."""
        try:
            await self._ready.wait()
        except asyncio.CancelledError:
            part.close()
            raise
        await part

    async def _audit(self, audit: Audit, kinds: tuple[Kind, ...]) -> None:
        """Wait until everything has been listed, let the other parts begin, and audit from then on."""
        while not self._ready.is_set():
            try:
                await audit.caught_up(kinds)
            except ApiFault as fault:
                log.warning("the first listing failed", extra={"fields": {"fault": fault.message}})
                await asyncio.sleep(START_RETRY_SECONDS)
            else:
                self.health.begin()
                self._ready.set()
        await audit.run(kinds, self._settings.audit_seconds)

    async def _look_at_installed(self, audit: Audit) -> None:
        """See what comes to be installed while this runs: PodMonitors, and a CRD as new as the operator."""
        while True:
            try:
                self.world.has_pod_monitors = await self._in_thread(lambda: installed.has_pod_monitors(self._api))
                if self.world.has_pod_monitors:
                    await audit.check(POD_MONITORS)
                self._notice_crd(await self._in_thread(lambda: installed.crd_notice(self._api)))
            except ApiFault as fault:
                self.metrics.errors.labels("audit", fault.refusal.value).inc()
            await asyncio.sleep(OUTDATED_CHECK_SECONDS if self.world.notices else INSTALLED_CHECK_SECONDS)

    async def _wait_for_crd(self) -> None:
        told = ""
        while True:
            try:
                if await self._in_thread(lambda: installed.has_pools(self._api)):
                    return
                trouble = "the CRD decodepools.decodepool.dev is not installed: waiting for it"
            except ApiFault as fault:
                trouble = fault.message
            if trouble != told:
                log.warning(trouble)
                told = trouble
            await asyncio.sleep(START_RETRY_SECONDS)

    async def _wait_for_scope(self) -> None:
        """Find the namespaces that can be served, and serve those: one at least, since none would mean every one."""
        if self._settings.clusterwide:
            return
        while not self._scope.served:
            await self._look_at_scope()
            if not self._scope.served:
                await asyncio.sleep(START_RETRY_SECONDS)
        self._settings = replace(self._settings, namespaces=self._scope.served)

    async def _watch_scope(self) -> None:
        """End once other namespaces can be served."""
        while not self._is_rescoped:
            await asyncio.sleep(self._settings.scope_seconds)
            self._is_rescoped = await self._look_at_scope()

    async def _look_at_scope(self) -> bool:
        changed = await self._in_thread(self._scope.look)
        self.metrics.unserved.set(self._scope.unserved)
        return changed

    async def _watch_rivals(self, rivals: Rivals) -> None:
        """Tell, as long as there is one, of another operator over the same pools."""
        while True:
            try:
                found = await self._in_thread(rivals.look)
            except ApiFault as fault:
                self.metrics.errors.labels("rivals", fault.refusal.value).inc()
            else:
                self.metrics.rivals.set(len(found))
                if found:
                    log.error("other operators serve the same pools", extra={"fields": {"leases": found}})
            await asyncio.sleep(self._settings.scope_seconds)

    def _notice_crd(self, notice: str | None) -> None:
        notices = (notice,) if notice else ()
        if notices == self.world.notices:
            return
        self.world.notices = notices
        self.metrics.crd_outdated.set(notice is not None)
        log.log(logging.ERROR if notice else logging.INFO, notice or "the installed CRD is as new as this operator")
        for key in self.store.pools():
            self.queue.add(key)

    async def _serve(self) -> Connections:
        application = probes.application(self.health, self.metrics)
        connections = Connections(application, self._settings.http_port, probes.MOST_CONNECTIONS)
        await connections.open()
        return connections

    async def _stop(self, parts: list[asyncio.Task[None]], kopf_task: asyncio.Task[None], server: Connections) -> None:
        failed = [task.exception() for task in (*parts, kopf_task) if task.done() and not task.cancelled()]
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        self._stopping.set()
        await asyncio.wait([kopf_task], timeout=STOP_SECONDS)
        kopf_task.cancel()
        await asyncio.gather(kopf_task, return_exceptions=True)
        self.world.resolver.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await server.close()
        for error in failed:
            if error is not None:
                raise error

    def _watch_metrics(self) -> None:
        pools = lambda: (pool for key in self.store.pools() if (pool := self.store.pool(key)))  # noqa: E731
        gauges = {
            "decodepool_operator_queue_depth": ("Pools that are due and wait.", lambda: float(self.queue.depth)),
            "decodepool_operator_heartbeat_age_seconds": (
                "Since a heartbeat came back through the watch.", lambda: self.health.unseen_seconds,
            ),
        }  # fmt: skip
        self.metrics.watch(pools, gauges)

    async def _read_secret(self, namespace: str, name: str) -> Object:
        return await self._in_thread(lambda: self._api.get(SECRETS, namespace, name))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
