"""Every way a request can be refused, as OpenAI's error object.

The table `FAULTS` is the whole list, of workers and gateways alike: a code, the status it answers with and OpenAI's
`type` for it. Handlers raise `ApiError`, and what nobody foresaw becomes `internal_error` at the same door.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Fault(NamedTuple):
    """What a code means to a client."""

    status: int
    type: str
    retry_after_seconds: int | None = None


INVALID = "invalid_request_error"
UNAVAILABLE = "unavailable_error"

FAULTS: dict[str, Fault] = {
    "malformed_request": Fault(400, INVALID),
    "invalid_json": Fault(400, INVALID),
    "invalid_value": Fault(400, INVALID),
    "missing_field": Fault(400, INVALID),
    "unknown_field": Fault(400, INVALID),
    "unsupported_parameter": Fault(400, INVALID),
    "template_failed": Fault(400, INVALID),
    "context_length_exceeded": Fault(400, INVALID),
    "invalid_api_key": Fault(401, "authentication_error"),
    "not_local": Fault(403, "permission_error"),
    "unknown_route": Fault(404, INVALID),
    "unknown_session": Fault(404, INVALID),
    "model_not_found": Fault(404, INVALID),
    "method_not_allowed": Fault(405, INVALID),
    "request_timeout": Fault(408, INVALID),
    "session_busy": Fault(409, INVALID),
    "length_differs": Fault(409, INVALID),
    "nothing_to_resume": Fault(409, INVALID),
    "decode_cancelled": Fault(409, INVALID),
    "session_gone": Fault(410, INVALID),
    "body_too_large": Fault(413, INVALID),
    "expectation_failed": Fault(417, INVALID),
    "no_free_session": Fault(429, "rate_limit_error", retry_after_seconds=1),
    "decode_failed": Fault(500, "server_error"),
    "internal_error": Fault(500, "server_error"),
    "worker_lost": Fault(502, "server_error"),
    "loading": Fault(503, UNAVAILABLE, retry_after_seconds=2),
    "draining": Fault(503, UNAVAILABLE, retry_after_seconds=5),
    "engine_failed": Fault(503, UNAVAILABLE, retry_after_seconds=5),
    "no_ready_worker": Fault(503, UNAVAILABLE, retry_after_seconds=2),
    "worker_unreachable": Fault(503, UNAVAILABLE, retry_after_seconds=1),
    "overloaded": Fault(503, UNAVAILABLE, retry_after_seconds=1),
}


@dataclass
class ApiError(Exception):
    """A refused request: a code of `FAULTS`, one sentence, and the field at fault where there is one."""

    code: str
    message: str
    param: str | None = None

    @property
    def fault(self) -> Fault:
        """The row of the table."""
        return FAULTS[self.code]

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.fault.status

    def body(self) -> dict[str, dict[str, str | None]]:
        """OpenAI's error object. Whatever a body made it repeat, UTF-8 can hold it."""
        param = None if self.param is None else _encodable(self.param)
        return {
            "error": {"message": _encodable(self.message), "type": self.fault.type, "param": param, "code": self.code}
        }

    def headers(self) -> Mapping[str, str]:
        """Retry advice: `openai` retries 409, 429 and 5xx by itself, which a session must not suffer unasked."""
        wait = self.fault.retry_after_seconds
        if wait is not None:
            return {"Retry-After": str(wait), "retry-after-ms": str(wait * 1000)}
        return {"x-should-retry": "false"}


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
