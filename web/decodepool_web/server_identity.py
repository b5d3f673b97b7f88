"""Who serves: under which name it speaks of itself, where it logs its requests, what it counts them in."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from prometheus_client import Counter

from decodepool_web.answers import json_answer


class RequestCounters(Protocol):
    """`requests` by method, route and status, `refused` by reason, and `disconnects`: clients that left first."""

    requests: Counter
    refused: Counter
    disconnects: Counter


@dataclass(frozen=True)
class ServerIdentity:
    """A worker or a gateway, as its requests and connections know it."""

    name: str
    logger: logging.Logger
    counters: RequestCounters

    def refusal(self, fault: ApiError, headers: Mapping[str, str] | None = None) -> web.Response:
        """Count a refusal, and return its answer: OpenAI's error object."""
        self.counters.refused.labels(fault.code).inc()
        answer = json_answer(fault.body(), fault.status, {**fault.headers(), **(headers or {})})
        if fault.code == "malformed_request":
            answer.force_close()  # nobody knows where a next request would begin
        return answer

    def internal_error(self) -> ApiError:
        """Return what a fault that nobody foresaw is refused as."""
        return ApiError("internal_error", f"the {self.name} failed to answer; its log says why")


IDENTITY = web.AppKey("identity", ServerIdentity)


def identity_of(request: web.Request) -> ServerIdentity:
    """Return who serves a request."""
    return request.app[IDENTITY]
