"""What workers and gateways say of themselves, polled at a modest period and told only when the picture changes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus

import aiohttp

from decodepool_operator.api.faults import ApiFault
from decodepool_operator.names import (
    GATEWAY,
    GATEWAY_PORT,
    SIDECAR_LABEL,
    WORKER,
    WORKER_PORT,
    PoolKey,
    is_made_for,
)
from decodepool_operator.planner.state import Object, WorkerReport
from decodepool_operator.shell.answers import first_key, queued_of, report_of
from decodepool_operator.shell.pictures import Picture, is_ending, next_picture
from decodepool_operator.shell.store import Store

TIMEOUT = aiohttp.ClientTimeout(total=3.0)
POLLS_AT_ONCE = 64
HURRY_SECONDS = 1.0
"""In which whatever happens to pods leads to one poll."""
KEYS_SECONDS = 60.0
"""How long API keys read from a Secret are used before they are read again."""
MAX_ANSWER_BYTES = 1 << 20

ReadSecret = Callable[[str, str], Awaitable[Object]]

log = logging.getLogger(__name__)


class Reports:
    """The last answers of every pool's pods. A pod that does not answer is missing, which is not zero."""

    def __init__(self, store: Store, read_secret: ReadSecret, changed: Callable[[PoolKey], None]) -> None:
        self._store = store
        self._read_secret = read_secret
        self._changed = changed
        self._pictures: dict[PoolKey, Picture] = {}
        self._keys: dict[PoolKey, tuple[float, str | None]] = {}
        self._hurried: set[PoolKey] = set()
        self._news = asyncio.Event()

    def of(self, key: PoolKey) -> Mapping[str, WorkerReport]:
        """Return a pool's reports by pod name."""
        return dict(self._picture(key).reports)

    def queued(self, key: PoolKey) -> int | None:
        """Return how many sessions wait at a pool's gateways; None where not every gateway told."""
        return self._picture(key).queued

    def hurry(self, key: PoolKey) -> None:
        """Poll a pool soon: something became of one of its pods."""
        self._hurried.add(key)
        self._news.set()

    async def run(self, period_seconds: float) -> None:
        """Poll for ever: every pool each period, and those with news between."""
        loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession(timeout=TIMEOUT, trust_env=False) as session:
            while True:
                self._hurried.clear()
                await self.poll(session)
                until = loop.time() + period_seconds
                while (left := until - loop.time()) > 0:
                    await self._poll_hurried(session, left)

    async def _poll_hurried(self, session: aiohttp.ClientSession, left_seconds: float) -> None:
        try:
            await asyncio.wait_for(self._news.wait(), left_seconds)
        except TimeoutError:
            return
        await asyncio.sleep(min(HURRY_SECONDS, left_seconds))
        self._news.clear()
        keys, self._hurried = self._hurried, set()
        await self._poll_all(session, keys)

    async def poll(self, session: aiohttp.ClientSession) -> None:
        """Poll every pool's pods once."""
        keys = self._store.pools()
        for memory in (self._pictures, self._keys):
            for gone in memory.keys() - set(keys):
                del memory[gone]
        await self._poll_all(session, keys)

    async def _poll_all(self, session: aiohttp.ClientSession, keys: Iterable[PoolKey]) -> None:
        """Poll pools at once. One that cannot be polled, whatever the reason, leaves no other unasked."""
        limit = asyncio.Semaphore(POLLS_AT_ONCE)
        polls = {key: self._poll_pool(session, limit, key) for key in keys}
        for key, fault in zip(polls, await asyncio.gather(*polls.values(), return_exceptions=True), strict=True):
            if isinstance(fault, Exception):
                log.error("a pool could not be polled", exc_info=fault, extra={"fields": {"pool": "/".join(key)}})
            elif fault is not None:
                raise fault

    def _picture(self, key: PoolKey) -> Picture:
        return self._pictures.get(key, Picture())

    async def _poll_pool(self, session: aiohttp.ClientSession, limit: asyncio.Semaphore, key: PoolKey) -> None:
        """Ask a pool's pods. The pool's key is for its own workers: a pod that only bears their labels, or one of an
        application, could be anybody's, and a sidecar's counts are open.
        """
        pods = self._store.pods(key)
        workers = [pod for pod in pods if is_made_for(pod, key[1], WORKER) and _may_report(pod)]
        sidecars = [pod for pod in pods if pod not in workers and _has_sidecar(pod, key[1]) and _may_report(pod)]
        gateways = [pod for pod in pods if is_made_for(pod, key[1], GATEWAY) and (_may_report(pod) or _started(pod))]
        if not (workers or sidecars or gateways) and key not in self._pictures:
            return
        headers = await self._headers(key) if workers else {}
        reports, queues = await asyncio.gather(
            asyncio.gather(
                *(self._ask_worker(session, limit, pod, headers) for pod in workers),
                *(self._ask_worker(session, limit, pod, {}) for pod in sidecars),
            ),
            asyncio.gather(*(self._ask_gateway(session, limit, pod) for pod in gateways)),
        )
        before = self._picture(key)
        now = next_picture(
            before, list(zip(workers + sidecars, reports, strict=True)), list(zip(gateways, queues, strict=True))
        )
        self._pictures[key] = now
        if not now.says_the_same(before):
            self._changed(key)

    async def _ask_worker(
        self, session: aiohttp.ClientSession, limit: asyncio.Semaphore, pod: Object, headers: Mapping[str, str]
    ) -> WorkerReport | None:
        text = await _fetch(session, limit, _url(pod, WORKER_PORT, "/v1/capacity"), headers)
        if text is None:
            return None
        try:
            return report_of(pod, json.loads(text))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    async def _ask_gateway(self, session: aiohttp.ClientSession, limit: asyncio.Semaphore, pod: Object) -> int | None:
        text = await _fetch(session, limit, _url(pod, GATEWAY_PORT, "/metrics"), {})
        return None if text is None else queued_of(text)

    async def _headers(self, key: PoolKey) -> Mapping[str, str]:
        pool = self._store.pool(key) or {}
        reference = ((pool.get("spec") or {}).get("auth") or {}).get("secretRef")
        if not reference:
            return {}
        now = asyncio.get_running_loop().time()
        until, token = self._keys.get(key, (0.0, None))
        if now >= until:
            token = await self._read_key(key[0], reference)
            self._keys[key] = (now + KEYS_SECONDS, token)
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _read_key(self, namespace: str, reference: Mapping[str, str]) -> str | None:
        try:
            secret = await self._read_secret(namespace, reference["name"])
        except ApiFault as fault:
            log.warning("API keys of a pool cannot be read", extra={"fields": {"fault": fault.message}})
            return None
        return first_key((secret.get("data") or {}).get(reference.get("key", "token")))


def _may_report(pod: Object) -> bool:
    """Whether asking a pod makes sense: it runs, and is ready or ending (a draining worker tells what is left)."""
    status = pod.get("status") or {}
    if status.get("phase") != "Running" or not status.get("podIP"):
        return False
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    return conditions.get("Ready") == "True" or is_ending(pod)


def _started(pod: Object) -> bool:
    """Whether a pod's container runs and was ready once: of a gateway that is too busy to be ready, somebody waits."""
    status = pod.get("status") or {}
    is_there = status.get("phase") == "Running" and bool(status.get("podIP"))
    return is_there and any(each.get("started") for each in status.get("containerStatuses") or ())


def _has_sidecar(pod: Object, pool_name: str) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(SIDECAR_LABEL) == pool_name)


def _url(pod: Object, port: int, path: str) -> str:
    address = pod["status"]["podIP"]
    return f"http://{f'[{address}]' if ':' in address else address}:{port}{path}"


async def _fetch(
    session: aiohttp.ClientSession, limit: asyncio.Semaphore, url: str, headers: Mapping[str, str]
) -> str | None:
    try:
        async with limit, session.get(url, headers=headers, allow_redirects=False) as answer:
            if answer.status != HTTPStatus.OK:
                return None
            body = bytearray()
            async for part in answer.content.iter_any():
                body += part
                if len(body) > MAX_ANSWER_BYTES:
                    return None
            return body.decode()
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError):
        return None
