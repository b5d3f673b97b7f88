"""What the API server's refusals mean for a pool. One exception type for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from kubernetes.client.exceptions import ApiException

UNTYPED = "failed to create typed patch object"
"""How the API server begins, with 500, where what is applied is not of its kind: a field that it has not, or two items
of one key. That is the request's fault, and no other request fails by it.
"""

MAX_CHARACTERS = 2000


class Refusal(StrEnum):
    """Why a request failed, as far as anybody would act differently upon it. The values are condition reasons."""

    NOT_FOUND = "NotFound"
    FIELD_CONFLICT = "FieldConflict"
    STALE = "Stale"
    QUOTA = "QuotaExceeded"
    TERMINATING = "NamespaceTerminating"
    FORBIDDEN = "Forbidden"
    INVALID = "Invalid"
    UNAVAILABLE = "APIUnavailable"


class ApiFault(Exception):  # noqa: N818 - the API's fault as much as ours
    """A request that the API server refused or did not answer. The text is one line."""

    def __init__(self, refusal: Refusal, message: str, *, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.message = message
        self.fields = fields
        """Of a field conflict: who holds what, one text a field."""


def fault_of(error: Exception) -> ApiFault:
    """Translate what the client library raises. Anything without an HTTP status is a server that did not answer."""
    if not isinstance(error, ApiException) or not error.status:
        return ApiFault(Refusal.UNAVAILABLE, f"the API server did not answer: {_first_line(str(error))}")
    status = _status_object(error)
    message = _one_line(str(status.get("message") or error.reason or f"HTTP {error.status}"))
    refusal = _refusal(int(error.status), status, message)
    return ApiFault(refusal, message, fields=_conflicts(status) if refusal is Refusal.FIELD_CONFLICT else ())


def _refusal(code: int, status: Mapping[str, Any], message: str) -> Refusal:
    causes = {str(cause.get("reason")) for cause in _causes(status)}
    if code == HTTPStatus.NOT_FOUND:
        return Refusal.TERMINATING if _missing_kind(status) == "namespaces" else Refusal.NOT_FOUND
    if code == HTTPStatus.CONFLICT:
        return Refusal.FIELD_CONFLICT if "FieldManagerConflict" in causes else Refusal.STALE
    if code == HTTPStatus.FORBIDDEN:
        return _forbidden(causes, message)
    if code in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY) or message.startswith(UNTYPED):
        return Refusal.INVALID
    return Refusal.UNAVAILABLE


def _forbidden(causes: set[str], message: str) -> Refusal:
    if "NamespaceTerminating" in causes:
        return Refusal.TERMINATING
    return Refusal.QUOTA if "exceeded quota" in message else Refusal.FORBIDDEN


def _missing_kind(status: Mapping[str, Any]) -> str:
    return str((status.get("details") or {}).get("kind", ""))


def _conflicts(status: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{cause.get('field', '?')}: {cause.get('message', '')}" for cause in _causes(status))


def _causes(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    details = status.get("details") or {}
    return list(details.get("causes") or [])


def _status_object(error: ApiException) -> Mapping[str, Any]:
    try:
        body = json.loads(error.body or "")
    except (ValueError, TypeError):
        return {}
    return body if isinstance(body, dict) else {}


def _one_line(text: str) -> str:
    """Join the lines: of several faults, and of most policies' words, the first says nothing."""
    return " ".join(text.split())[:MAX_CHARACTERS] or "no reason given"


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0] if lines else "no reason given"
