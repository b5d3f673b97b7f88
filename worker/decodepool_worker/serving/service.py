"""What every handler shares: the life of the process, and, once it is loaded, the model it serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_sizing.api_keys import ApiKeys

from decodepool_worker.serving.history import History
from decodepool_worker.serving.metrics import Metrics
from decodepool_worker.serving.offload import Offload
from decodepool_worker.serving.prompts import Prompts
from decodepool_worker.sessions.stats import Stats
from decodepool_worker.sessions.worker import Worker

STALLED_SECONDS = 60.0
"""A step that lasts longer is taken for a hang, and liveness fails. A full prefill chunk on a slow CPU is far below."""


class Phase(StrEnum):
    """The life of a worker process, forward only."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True)
class Served:
    """A loaded model and its sessions. `planned` and `measure()` are bytes under the plan's names."""

    name: str
    architecture: str
    vocabulary_size: int
    context_tokens: int
    session_capacity: int
    kv_type: str
    fingerprint: str
    limited_by: str
    planned: Mapping[str, int]
    measure: Callable[[], Mapping[str, int]]
    worker: Worker
    prompts: Prompts
    close: Callable[[], None]
    created: int = field(default_factory=lambda: int(time.time()))

    def require_model(self, name: str) -> None:
        """Raise `ApiError` unless `name` is this model."""
        if name != self.name:
            raise ApiError("model_not_found", f"model: this worker serves {self.name!r}, not {name[:200]!r}", "model")


class Service:
    """One worker process as its handlers see it."""

    def __init__(
        self,
        keys: ApiKeys | None = None,
        metrics: Metrics | None = None,
        *,
        tag: str | None = None,
        local_clients: bool = False,
    ) -> None:
        self.phase = Phase.LOADING
        self.keys = keys or ApiKeys()
        self.tag = tag
        self.local_clients = local_clients
        self.metrics = metrics or Metrics()
        self.offload = Offload()
        self.history = History(self.stats, lambda: self.metrics.stepping_seconds)
        self.started = time.time()
        self._served: Served | None = None
        self._bodies: set[asyncio.Timeout] = set()
        self.metrics.watch(self.stats, lambda: self.is_ready)

    @property
    def is_ready(self) -> bool:
        """Whether new sessions are admitted."""
        return self.phase is Phase.READY and not self.fault

    @property
    def fault(self) -> str | None:
        """Why the engine cannot go on, if so."""
        stats = self.stats()
        return stats.fault if stats else None

    @contextmanager
    def reading(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """Name the deadline of a body that is being read, so that the process's end can be before it."""
        self._bodies.add(deadline)
        try:
            yield
        finally:
            self._bodies.discard(deadline)

    def stop_reading(self) -> None:
        """Give up every body that is not here yet: there is no telling when the rest of it comes."""
        for deadline in self._bodies:
            with suppress(RuntimeError):  # it has passed already
                deadline.reschedule(0)

    def open(self, served: Served) -> None:
        """Begin to serve a loaded model, unless the process is ending already."""
        self._served = served
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    def stats(self) -> Stats | None:
        """Return the sessions' counts, once there are sessions."""
        return self._served.worker.stats() if self._served else None

    def loaded(self) -> Served | None:
        """Return what is served, in any phase; None while it loads."""
        return self._served

    def served(self) -> Served:
        """Return what is served; raise `ApiError` 503 while it loads."""
        if self._served is None:
            raise ApiError("loading", "the model is being loaded")
        return self._served

    def served_to_new_work(self) -> Served:
        """Return what is served; raise `ApiError` 503 while it loads or drains."""
        if self.phase is Phase.DRAINING:
            raise ApiError("draining", "the worker is draining: it takes no new work")
        return self.served()


SERVICE = web.AppKey("service", Service)
DOCUMENT = web.AppKey[Mapping[str, Any]]("document", dict)


def service_of(request: web.Request) -> Service:
    """Return the service behind a request."""
    return request.app[SERVICE]
