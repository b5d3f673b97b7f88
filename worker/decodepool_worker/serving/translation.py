"""What the rooms below raise, as refusals. The only place where their exceptions meet HTTP."""

from __future__ import annotations

from decodepool_sizing.api_errors import ApiError

from decodepool_worker.sessions.errors import (
    ContextFull,
    Draining,
    EngineFailed,
    InvalidRequest,
    LengthDiffers,
    NoRoom,
    NothingToResume,
    SessionBusy,
    SessionError,
    SessionGone,
    UnknownSession,
)
from decodepool_worker.text.errors import NoTokenizer, TemplateFault, TextTooLong

CODES: dict[type[Exception], str] = {
    InvalidRequest: "invalid_value",
    UnknownSession: "unknown_session",
    SessionBusy: "session_busy",
    LengthDiffers: "length_differs",
    NothingToResume: "nothing_to_resume",
    SessionGone: "session_gone",
    ContextFull: "context_length_exceeded",
    NoRoom: "no_free_session",
    Draining: "draining",
    EngineFailed: "engine_failed",
    NoTokenizer: "unsupported_parameter",
    TemplateFault: "template_failed",
    TextTooLong: "context_length_exceeded",
}

FORESEEN = (SessionError, NoTokenizer, TemplateFault, TextTooLong)


def translated(error: Exception) -> ApiError:
    """Return the refusal for one of the `FORESEEN`."""
    code = next(code for kind, code in CODES.items() if isinstance(error, kind))
    return ApiError(code, str(error), getattr(error, "field", None))
