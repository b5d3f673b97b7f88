"""What there is to know of a worker: capacity, model, health, readiness, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_web.answers import json_answer
from prometheus_client import CONTENT_TYPE_LATEST

from decodepool_worker.serving.answers import Bytes
from decodepool_worker.serving.service import DOCUMENT, STALLED_SECONDS, Phase, Served, service_of


async def capacity(request: web.Request) -> web.Response:
    """Places for sessions, and bytes planned and measured."""
    service = service_of(request)
    served = service.served()
    active = sum(served.worker.stats().sessions.values())
    answer = {
        "sessions": {"capacity": served.session_capacity, "active": active, "free": served.session_capacity - active},
        "context_tokens": served.context_tokens,
        "kv_type": served.kv_type,
        "planned": bytes_of(served.planned),
        "measured": bytes_of(served.measure()),
        "limited_by": served.limited_by,
        "worker_tag": service.tag,
        "system_fingerprint": served.fingerprint,
    }
    return json_answer(answer)


async def models(request: web.Request) -> web.Response:
    """The served model, as OpenAI lists models."""
    return json_answer({"object": "list", "data": [_model(service_of(request).served())]})


async def model(request: web.Request) -> web.Response:
    """The served model."""
    served = service_of(request).served()
    served.require_model(request.match_info["name"])
    return json_answer(_model(served))


async def healthz(request: web.Request) -> web.Response:
    """Liveness: fails when the engine failed, or a step lasts beyond reason. Loading and draining are alive."""
    service = service_of(request)
    served = service.loaded()
    trouble = served.worker.stalled(STALLED_SECONDS) if served and service.phase is not Phase.DRAINING else None
    if trouble is not None:
        raise ApiError("engine_failed", trouble)
    return json_answer({"status": "ok", "phase": service.phase.value})


async def readyz(request: web.Request) -> web.Response:
    """Readiness: new sessions are admitted, be all places taken or not."""
    service = service_of(request)
    service.served_to_new_work()
    if service.fault is not None:
        raise ApiError("engine_failed", service.fault)
    return json_answer({"status": "ready"})


async def metrics(request: web.Request) -> web.Response:
    """Prometheus metrics."""
    return web.Response(body=service_of(request).metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def openapi_json(request: web.Request) -> web.Response:
    """This document."""
    return json_answer(request.app[DOCUMENT])


def bytes_of(amounts: Mapping[str, int]) -> dict[str, int | None]:
    """Return every part by the plan's names, null where it is not known."""
    return {name: amounts.get(name) for name in Bytes.model_fields}


def _model(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "decodepool",
        "architecture": served.architecture,
        "context_tokens": served.context_tokens,
        "vocabulary_size": served.vocabulary_size,
        "system_fingerprint": served.fingerprint,
    }
