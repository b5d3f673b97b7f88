# ruff: noqa: N818 - the names say what happened, rather than that it is an error
"""Why a request cannot be served by the sessions. Serving translates each class to one HTTP status, once."""

from __future__ import annotations


class SessionError(Exception):
    """The one family of faults that this room raises. A raised one left every session exactly as it was, save for an
    `EngineFailed` during a fork, which ended them all.
    """


class InvalidRequest(SessionError):
    """The request makes no sense whatever the state: names the field and the value. (400)"""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class UnknownSession(SessionError):
    """No session has this id, nor had one that is still remembered. (404)"""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id!r}")
        self.session_id = session_id


class SessionBusy(SessionError):
    """The session is decoding, and this cannot be done beside it. (409)"""


class LengthDiffers(SessionError):
    """The session holds another number of tokens than its client took it to. (409)"""

    def __init__(self, expected: int, length: int) -> None:
        super().__init__(f"length: the session's is {length}, not {expected}")
        self.field = "length"


class NothingToResume(SessionError):
    """The session remembers no decode that could go on after that position. (409)"""


class SessionGone(SessionError):
    """The session was closed or failed; `reason` tells which. (410)"""

    def __init__(self, session_id: str, reason: str) -> None:
        super().__init__(f"session {session_id!r} is gone: {reason}")
        self.session_id = session_id
        self.reason = reason


class ContextFull(SessionError):
    """The tokens do not fit into the session's context. (400)"""

    def __init__(self, length: int, added: int, context_tokens: int) -> None:
        super().__init__(f"{added} tokens do not fit: the session holds {length} of {context_tokens}")
        self.length = length
        self.added = added
        self.context_tokens = context_tokens


class NoRoom(SessionError):
    """No slot, or no reservation of that size, is free. (429)"""

    def __init__(self, active: int, capacity: int, asked: int) -> None:
        super().__init__(f"no room for {asked} more: {active} sessions are resident of {capacity}")
        self.active = active
        self.capacity = capacity


class Draining(SessionError):
    """The worker takes no new work: it is about to end, or has. (503)"""


class EngineFailed(SessionError):
    """The engine raised. Nothing is served until a restart. (503)"""
