"""What workers and gateways say of themselves, polled at a modest period and told only when the picture changes."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import aiohttp

from decodepool_operator.api.faults import ApiFault
from decodepool_operator.names import (
    COMPONENT_LABEL,
    GATEWAY,
    GATEWAY_PORT,
    SIDECAR_LABEL,
    WORKER,
    WORKER_PORT,
    PoolKey,
)
from decodepool_operator.planner.state import Object, WorkerReport
from decodepool_operator.shell.store import Store
from decodepool_operator.texts import is_one_word

TIMEOUT = aiohttp.ClientTimeout(total=3.0)
POLLS_AT_ONCE = 64
HURRY_SECONDS = 1.0
"""In which whatever happens to pods leads to one poll."""
FORGIVEN_MISSES = 2
"""Polls that may go unanswered before a worker's report is dropped: a busy second is not a lost worker."""
STEADY_SHARE = 0.01
"""Measured bytes that moved by less are the same bytes: resident memory breathes."""
KEYS_SECONDS = 60.0
"""How long API keys read from a Secret are used before they are read again."""
MAX_ANSWER_BYTES = 1 << 20
MOST_SESSIONS = 1_000_000
MOST_BYTES = 1 << 62
LONGEST_FINGERPRINT = 64
"""What a worker says comes from a pod that anybody may have chosen the image of: absurd numbers are no answer."""
QUEUED_METRIC = "decodepool_pool_queued"

_QUEUED = re.compile(rf"^{QUEUED_METRIC}(?:\{{[^}}]*\}})? (\S+)", re.MULTILINE)

ReadSecret = Callable[[str, str], Awaitable[Object]]

log = logging.getLogger(__name__)


class Reports:
    """The last answers of every pool's pods. A pod that does not answer is missing, which is not zero."""

    def __init__(self, store: Store, read_secret: ReadSecret, changed: Callable[[PoolKey], None]) -> None:
        self._store = store
        self._read_secret = read_secret
        self._changed = changed
        self._reports: dict[PoolKey, dict[str, WorkerReport]] = {}
        self._queued: dict[PoolKey, int] = {}
        self._misses: dict[tuple[PoolKey, str], int] = {}
        self._keys: dict[PoolKey, tuple[float, str | None]] = {}
        self._hurried: set[PoolKey] = set()
        self._news = asyncio.Event()

    def of(self, key: PoolKey) -> Mapping[str, WorkerReport]:
        """Return a pool's reports by pod name."""
        return dict(self._reports.get(key, {}))

    def queued(self, key: PoolKey) -> int | None:
        """Return how many sessions wait at a pool's gateways; None where no gateway told."""
        return self._queued.get(key)

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
        for gone in (self._reports.keys() | self._queued.keys() | self._keys.keys()) - set(keys):
            self._forget(gone)
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

    def _forget(self, key: PoolKey) -> None:
        for memory in (self._reports, self._queued, self._keys):
            memory.pop(key, None)
        for miss in [miss for miss in self._misses if miss[0] == key]:
            del self._misses[miss]

    async def _poll_pool(self, session: aiohttp.ClientSession, limit: asyncio.Semaphore, key: PoolKey) -> None:
        pods = self._store.pods(key)
        workers = [pod for pod in pods if _may_report(pod) and _is_worker(pod)]
        gateways = [pod for pod in pods if _may_report(pod) and _component(pod) == GATEWAY]
        if not workers and not gateways and key not in self._reports:
            return
        headers = await self._headers(key)
        asked = [self._ask_worker(session, limit, pod, headers) for pod in workers]
        waits = [self._ask_gateway(session, limit, pod) for pod in gateways]
        reports, queued = await asyncio.gather(asyncio.gather(*asked), asyncio.gather(*waits))
        self._take(key, dict(self._merged(key, workers, reports)), [count for count in queued if count is not None])

    def _merged(
        self, key: PoolKey, workers: Iterable[Object], answers: Iterable[WorkerReport | None]
    ) -> Iterator[tuple[str, WorkerReport]]:
        known = self._reports.get(key, {})
        for pod, answer in zip(workers, answers, strict=True):
            name = pod["metadata"]["name"]
            before = known.get(name)
            if answer is not None:
                self._misses.pop((key, name), None)
                yield name, settled(before, answer)
                continue
            misses = self._misses[key, name] = self._misses.get((key, name), 0) + 1
            if before is not None and before.uid == pod["metadata"]["uid"] and misses <= FORGIVEN_MISSES:
                yield name, before

    def _take(self, key: PoolKey, reports: dict[str, WorkerReport], queued: list[int]) -> None:
        total = sum(queued) if queued else None
        if reports == self._reports.get(key, {}) and total == self._queued.get(key):
            return
        self._reports[key] = reports
        if total is None:
            self._queued.pop(key, None)
        else:
            self._queued[key] = total
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


def first_key(encoded: str | None) -> str | None:
    """Return the first key of a key file in a Secret that a header can carry; None where it has none."""
    try:
        lines = base64.b64decode(encoded or "").decode().splitlines()
    except ValueError:
        return None
    keys = (line.strip() for line in lines if not line.lstrip().startswith("#"))
    return next((key for key in keys if is_one_word(key)), None)


def report_of(pod: Object, answer: Mapping[str, Any]) -> WorkerReport:
    """Return what a worker's `/v1/capacity` says; ValueError, KeyError or TypeError where it makes no sense."""
    sessions = answer["sessions"]
    capacity, active = sessions["capacity"], sessions["active"]
    if not (_is_amount(capacity) and _is_amount(active) and active <= capacity <= MOST_SESSIONS):
        raise ValueError("these are no numbers of sessions")
    return WorkerReport(
        pod=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        sessions_capacity=capacity,
        sessions_active=active,
        measured_bytes=_amounts(answer.get("measured")),
        fingerprint=_fingerprint(answer.get("system_fingerprint")),
    )


def settled(before: WorkerReport | None, now: WorkerReport) -> WorkerReport:
    """Return a report whose measured bytes stay as they were where they only breathe."""
    if before is None or before.uid != now.uid:
        return now
    steady = {
        name: before.measured_bytes[name] if _is_steady(before.measured_bytes.get(name), value) else value
        for name, value in now.measured_bytes.items()
    }
    return replace(now, measured_bytes=steady)


def queued_of(text: str) -> int | None:
    """Return the waiting sessions in a gateway's metrics; None where there is no such metric."""
    try:
        values = [int(float(value)) for value in _QUEUED.findall(text)]
    except (ValueError, OverflowError):
        return None
    return sum(values) if values else None


def _is_steady(before: int | None, now: int) -> bool:
    return before is not None and abs(now - before) <= STEADY_SHARE * max(before, now)


def _amounts(written: object) -> dict[str, int]:
    if not isinstance(written, dict):
        return {}
    return {name: value for name, value in written.items() if _is_amount(value)}


def _fingerprint(written: object) -> str | None:
    """Return a fingerprint that may stand in a condition."""
    is_one = isinstance(written, str) and len(written) <= LONGEST_FINGERPRINT and is_one_word(written)
    return str(written) if is_one else None


def _is_amount(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_BYTES


def _may_report(pod: Object) -> bool:
    """Whether asking a pod makes sense: it runs, and is ready or ending (a draining worker tells what is left)."""
    status = pod.get("status") or {}
    if status.get("phase") != "Running" or not status.get("podIP"):
        return False
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    return conditions.get("Ready") == "True" or "deletionTimestamp" in pod["metadata"]


def _is_worker(pod: Object) -> bool:
    return _component(pod) == WORKER or SIDECAR_LABEL in (pod["metadata"].get("labels") or {})


def _component(pod: Object) -> str | None:
    component: str | None = (pod["metadata"].get("labels") or {}).get(COMPONENT_LABEL)
    return component


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
