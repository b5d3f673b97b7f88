"""What the live page is told: `GET /v1/live`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from decodepool_worker.serving.answers import State
from decodepool_worker.serving.fields import Answer


class LivePoint(Answer):
    """One second of the page's lines; the mean step's figures, null without steps."""

    tokens_per_second: float
    step_ms: float | None
    rows: float | None


class LiveSession(Answer):
    """A session as the page shows it. Whoever has an id may use the session, so ids here are cut short."""

    id: str
    parent: str | None = Field(description="The session that this one was forked from, its id cut short too.")
    state: State
    length: int
    evaluated: int
    context_tokens: int
    age_seconds: float


class LiveSessions(Answer):
    """Places for sessions, and who has them."""

    capacity: int
    list: list[LiveSession]


class LiveMemory(Answer):
    """The plan: its parts, reserve and cache split by use, add up to `planned_bytes`. `resident_bytes` is measured."""

    process_bytes: int
    weight_bytes: int
    workspace_bytes: int
    reserve_used_bytes: int
    reserve_free_bytes: int
    cache_used_bytes: int
    cache_free_bytes: int
    planned_bytes: int
    resident_bytes: int | None


class LiveAnswer(Answer):
    """What the live page draws. Only `phase` while the model is being loaded."""

    phase: Literal["loading", "ready", "draining", "failed"]
    model: str | None = None
    architecture: str | None = None
    context_tokens: int | None = None
    system_fingerprint: str | None = None
    sessions: LiveSessions | None = None
    memory: LiveMemory | None = None
    pages: str | None = Field(default=None, description="One letter a physical page: free, held, shared, kept.")
    history: list[LivePoint] | None = None
