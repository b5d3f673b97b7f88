"""Answers that speak of the whole pool, and those that any worker can give."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_web.answers import json_answer
from prometheus_client import CONTENT_TYPE_LATEST

from decodepool_gateway.gateway import Gateway, gateway_of
from decodepool_gateway.polling import answers
from decodepool_gateway.relay import relay
from decodepool_gateway.upstream import WorkerUnreachable
from decodepool_gateway.workers import Worker

UNAVAILABLE = 503
COMMON = ("context_tokens", "kv_type", "limited_by", "worker_tag", "system_fingerprint")
OF_A_SESSION = frozenset({"session_bytes"})
"""Bytes that more workers do not make more."""

UNHEARD = "X-Decodepool-Unheard"
"""Names the workers that a list lacks, since they did not answer."""


async def list_sessions(request: web.Request) -> web.StreamResponse:
    """List the sessions of all workers, oldest first."""
    gateway = gateway_of(request)
    heard = await answers(gateway.upstream, gateway.pool.workers, "/v1/sessions")
    if not any(answer for _, answer in heard):
        raise no_worker(gateway)
    found = [session for _, answer in heard if answer for session in answer["data"]]
    unheard = ", ".join(worker.address.name for worker, answer in heard if answer is None)
    listed = {"object": "list", "data": sorted(found, key=lambda session: session["created"])}
    return json_answer(listed, headers={UNHEARD: unheard} if unheard else {})


async def capacity(request: web.Request) -> web.StreamResponse:
    """Places and bytes of all workers together, as last reported; and each worker's."""
    gateway = gateway_of(request)
    known = [worker for worker in gateway.pool.workers if worker.report is not None]
    if not known:
        raise no_worker(gateway)
    return json_answer(
        {**summed(known), "queued": gateway.placements.queued, "workers": [_told(each) for each in known]}
    )


async def ask_any(request: web.Request) -> web.StreamResponse:
    """Pass a request on to any worker."""
    gateway = gateway_of(request)
    async with gateway.body_of(request) as body:
        for worker in _shuffled(gateway.pool.admitting):
            try:
                async with gateway.passed_on(request, worker, body) as answer:
                    if answer.status != UNAVAILABLE:
                        return await relay(request, answer)
            except WorkerUnreachable:
                gateway.placements.unreachable(worker)
    raise no_worker(gateway)


async def healthz(request: web.Request) -> web.StreamResponse:
    """Liveness: the event loop goes round."""
    gateway = gateway_of(request)
    return json_answer({"status": "ok", "phase": "draining" if gateway.draining else "ready"})


async def readyz(request: web.Request) -> web.StreamResponse:
    """Readiness: a worker has taken sessions, and the gateway does not drain."""
    gateway = gateway_of(request)
    if gateway.draining:
        raise ApiError("draining", "the gateway is draining")
    if not gateway.is_ready:
        raise no_worker(gateway)
    return json_answer({"status": "ready"})


async def metrics(request: web.Request) -> web.StreamResponse:
    """Prometheus metrics."""
    body = gateway_of(request).metrics.exposition()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def no_worker(gateway: Gateway) -> ApiError:
    """Return the refusal where no worker can answer."""
    known = f"{len(gateway.pool.workers)} are known{gateway.pool.remedy}"
    return ApiError("no_ready_worker", f"pool {gateway.name} has no worker that takes requests; {known}")


def summed(workers: Sequence[Worker]) -> dict[str, Any]:
    """Add up workers' reports, in the shape of one: what they do not agree on is null."""
    reports = [worker.report for worker in workers if worker.report is not None]
    active = sum(worker.active for worker in workers)
    free = sum(worker.free for worker in workers if worker.admits)
    return {
        "sessions": {"capacity": active + free, "active": active, "free": free},
        **{name: _common(reports, name) for name in COMMON},
        **{name: _bytes([report[name] for report in reports]) for name in ("planned", "measured")},
    }


def _told(worker: Worker) -> dict[str, Any]:
    assert worker.report is not None  # those without one are left out
    told = {name: worker.report[name] for name in ("sessions", "system_fingerprint")}
    return {"name": worker.address.name, "state": worker.state, **told}


def _common(reports: Iterable[Mapping[str, Any]], name: str) -> Any:
    values = {report.get(name) for report in reports}
    return values.pop() if len(values) == 1 else None


def _bytes(parts: Sequence[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Bytes of all workers by name: what each session takes where they agree on it, sums of everything else."""
    return {name: _common(parts, name) if name in OF_A_SESSION else _sum(parts, name) for name in parts[0]}


def _sum(parts: Iterable[Mapping[str, int | None]], name: str) -> int | None:
    """Add up a part; null where one is not known."""
    values = [part[name] for part in parts]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _shuffled(workers: Sequence[Worker]) -> list[Worker]:
    return random.sample(workers, len(workers))
