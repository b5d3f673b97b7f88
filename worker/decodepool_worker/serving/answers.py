"""What the session API and the helpers answer: `/openapi.json` shows it, and the tests hold answers to it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from decodepool_worker.serving.fields import Answer
from decodepool_worker.sessions.events import FinishReason

State = Literal["prefilling", "idle", "decoding", "closed", "failed"]


class ErrorDetail(Answer):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(Answer):
    """Every refusal, on every route."""

    error: ErrorDetail


class SessionAnswer(Answer):
    """A session as it stands."""

    id: str
    object: Literal["session"]
    state: State
    length: int = Field(description="Tokens in the session.")
    evaluated: int = Field(
        description="How many of them the engine has read. The last drawn one waits for the next step."
    )
    context_tokens: int = Field(description="Tokens it may hold; reserved, so it will never be refused them.")
    seed: int
    parent: str | None = Field(description="The session it was forked from.")
    reused_tokens: int = Field(description="Tokens of the first prompt that kept pages already held.")
    created: int = Field(description="Unix seconds.")
    last_used: int = Field(
        description="Unix seconds: when it last was given tokens, decoded, stopped or forked; now, while it works."
    )
    system_fingerprint: str = Field(description="Equal fingerprints, tokens and seeds mean equal bits.")


class SessionList(Answer):
    """All sessions of this worker, oldest first."""

    object: Literal["list"]
    data: list[SessionAnswer]


class ForkAnswer(Answer):
    """The copies that were made."""

    sessions: list[SessionAnswer]


class TokensAnswer(Answer):
    """A session's tokens. Create it anywhere with these and the same seed, and it goes on alike."""

    id: str
    tokens: list[int]
    length: int


class CancelAnswer(Answer):
    """Whether there was anything to stop, and the session after it."""

    cancelled: bool
    session: SessionAnswer


class ClosedAnswer(Answer):
    """A session that was closed."""

    id: str
    object: Literal["session"]
    deleted: Literal[True]


class TopLogprob(Answer):
    """One of the likeliest tokens."""

    token: int
    text: str
    logprob: float


class TokenLogprob(Answer):
    """The log-probability of a drawn token under the raw logits, and of the likeliest beside it."""

    token: int
    text: str
    logprob: float
    top: list[TopLogprob]


class Usage(Answer):
    """Tokens before this decode, drawn by it, and together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class DecodeAnswer(Answer):
    """A whole decode."""

    id: str
    position: int = Field(description="Index of the first token drawn.")
    tokens: list[int] = Field(
        description="Every token drawn, those that spelled a stop or ended the turn too: all are kept."
    )
    text: str = Field(description="Their text, up to a stop string, without end tokens.")
    finish_reason: FinishReason
    stop: str | int | None = Field(description="The stop text or id that ended it.")
    length: int = Field(description="Tokens in the session now.")
    usage: Usage
    logprobs: list[TokenLogprob] | None
    system_fingerprint: str


class SessionCounts(Answer):
    """Places for sessions."""

    capacity: int
    active: int
    free: int


class Bytes(Answer):
    """What the plan says, or what was measured, under the plan's names. A part that was not measured is null."""

    weight_bytes: int | None
    workspace_bytes: int | None
    session_bytes: int | None
    usable_bytes: int | None
    reserve_bytes: int | None
    cache_bytes: int | None
    sessions_and_cache_bytes: int | None = Field(description="Reserve and cache together: one allocation.")
    resident_bytes: int | None = Field(
        description="Resident memory of the whole process; on a GPU, what of it was taken as the worker became ready."
    )


class CapacityAnswer(Answer):
    """What this worker holds, and what is free."""

    sessions: SessionCounts
    context_tokens: int
    kv_type: str
    planned: Bytes
    measured: Bytes
    limited_by: str
    worker_tag: str | None = Field(description="The mark in its sessions' ids; null without `--worker-tag-of`.")
    system_fingerprint: str


class ModelAnswer(Answer):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_tokens: int
    vocabulary_size: int
    architecture: str
    system_fingerprint: str


class ModelList(Answer):
    """The one model of this worker, as OpenAI lists models."""

    object: Literal["list"]
    data: list[ModelAnswer]


class TokenizeAnswer(Answer):
    """Ids of a text."""

    tokens: list[int]
    count: int


class DetokenizeAnswer(Answer):
    """Text of ids."""

    text: str


class HealthAnswer(Answer):
    """Whether the step loop makes progress; the answer to a liveness probe."""

    status: Literal["ok"]
    phase: Literal["loading", "ready", "draining"]


class ReadyAnswer(Answer):
    """Whether new sessions are admitted; the answer to a readiness probe."""

    status: Literal["ready"]
