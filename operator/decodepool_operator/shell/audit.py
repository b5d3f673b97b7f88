"""Holding what the watches told against what there is, every few minutes: by listing metadata, which is cheap.

A watch that is begun anew lists what there is, but nobody tells of what was deleted meanwhile; and a watch may be dead
without anybody noticing. What the audit finds it puts right, counts, and tells `Health`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from decodepool_operator.api.client import Api
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import POD_MONITORS, Kind
from decodepool_operator.names import PoolKey
from decodepool_operator.shell.handlers import Watches
from decodepool_operator.shell.health import Health
from decodepool_operator.shell.store import Object

T = TypeVar("T")

GRACE_SECONDS = 10.0
"""In which a watch may still tell what a list already shows."""
CATCH_UP_SECONDS = 0.5

log = logging.getLogger(__name__)


class Audit:
    """Checks kinds in the namespaces that are served."""

    def __init__(
        self, api: Api, watches: Watches, health: Health, threads: Executor, namespaces: Iterable[str | None]
    ) -> None:
        self._api = api
        self._watches = watches
        self._store = watches.store
        self._metrics = watches.metrics
        self._health = health
        self._threads = threads
        self._namespaces = tuple(namespaces)

    async def caught_up(self, kinds: Iterable[Kind]) -> None:
        """Return once the store holds all that there was when this was asked, but for what has gone since. ApiFault
        where a list fails.
        """
        for kind in kinds:
            missing = await self._missing(kind)
            while missing:
                await asyncio.sleep(CATCH_UP_SECONDS)
                missing &= await self._missing(kind)

    async def run(self, kinds: Iterable[Kind], period_seconds: float) -> None:
        """Check for ever. A list that fails is tried again at the next turn."""
        kinds = tuple(kinds)
        while True:
            await asyncio.sleep(period_seconds)
            for kind in kinds:
                try:
                    await self.check(kind)
                except ApiFault as fault:
                    self._metrics.errors.labels("audit", fault.refusal.value).inc()

    async def check(self, kind: Kind, grace_seconds: float = GRACE_SECONDS) -> int:
        """Check one kind, put right what was missed, and return how much that was. ApiFault where a list fails."""
        suspects = await self._suspects(kind)
        if suspects and kind is not POD_MONITORS:
            await asyncio.sleep(grace_seconds)
            suspects &= await self._suspects(kind)
        missed = 0
        for key in sorted(suspects):
            missed += await self._heal(kind, key)
        if kind is not POD_MONITORS:
            self._tell(kind, missed)
        return missed

    async def _suspects(self, kind: Kind) -> set[PoolKey]:
        """Return the objects whose last known state is not the listed one."""
        listed = await self._listed(kind)
        known = {key: int(body["metadata"]["resourceVersion"]) for key, body in self._store.all(kind).items()}
        missing = {key for key, version in listed.items() if known.get(key, 0) < version}
        return missing | (known.keys() - listed.keys())

    async def _missing(self, kind: Kind) -> set[PoolKey]:
        return (await self._listed(kind)).keys() - self._store.all(kind).keys()

    async def _listed(self, kind: Kind) -> dict[PoolKey, int]:
        """Return the resource version of each object."""
        listed = {}
        for namespace in self._namespaces if kind.namespaced else (None,):
            for metadata in await self._in_thread(partial(self._list, kind, namespace)):
                listed[metadata.get("namespace", ""), metadata["name"]] = int(metadata["resourceVersion"])
        return listed

    async def _heal(self, kind: Kind, key: PoolKey) -> bool:
        """Bring one object up to date; return whether the store was behind."""
        before = self._store.get(kind, *key)
        found = await self._in_thread(lambda: self._find(kind, key))
        if found is None:
            if before is not None:
                self._watches.lost(kind, before)
            return before is not None
        version = before["metadata"]["resourceVersion"] if before else None
        self._watches.saw(kind, found)
        return bool(version != found["metadata"]["resourceVersion"])

    def _list(self, kind: Kind, namespace: str | None) -> list[Object]:
        return list(self._api.list_metadata(kind, namespace))

    def _find(self, kind: Kind, key: PoolKey) -> Object | None:
        try:
            return self._api.get(kind, key[0] or None, key[1])
        except ApiFault as fault:
            if fault.refusal is Refusal.NOT_FOUND:
                return None
            raise

    def _tell(self, kind: Kind, missed: int) -> None:
        self._health.audited(kind.plural, missed)
        if missed:
            self._metrics.healed.labels(kind.name).inc(missed)
            log.warning("the watch kept changes to itself", extra={"fields": {"kind": kind.name, "changes": missed}})

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
