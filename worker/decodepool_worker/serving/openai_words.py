"""A decode in OpenAI's words: the pieces of chunks and whole answers, for chat and for text. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Protocol

from decodepool_worker.serving.decoding import joined_text
from decodepool_worker.serving.prompts import Prompts
from decodepool_worker.sessions.events import EndEvent, TokenEvent


@dataclass(frozen=True)
class Drawn:
    """A finished answer."""

    index: int
    tokens: Sequence[TokenEvent]
    end: EndEvent

    @property
    def text(self) -> str:
        """Its text."""
        return joined_text(self.tokens, self.end)


class Words(Protocol):
    """What the two endpoints say differently."""

    @property
    def object(self) -> str:
        """The `object` of a whole answer."""

    @property
    def chunk_object(self) -> str:
        """The `object` of a chunk."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice that begins a stream, if there is one."""

    def piece(self, index: int, text: str, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
        """Return the choice of one chunk."""

    def closing(self, index: int, text: str, reason: str) -> dict[str, Any]:
        """Return the choice of an answer's last chunk."""

    def whole(self, drawn: Drawn) -> dict[str, Any]:
        """Return the choice of a whole answer."""


@dataclass(frozen=True)
class ChatWords:
    """`/v1/chat/completions`. Of log-probabilities, end tokens are left out: they are no text."""

    prompts: Prompts
    with_logprobs: bool
    ends: frozenset[int]
    object: str = "chat.completion"
    chunk_object: str = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any]:
        """Say who speaks."""
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, text: str, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
        """Return some text and its tokens."""
        return {"index": index, "delta": {"content": text}, "logprobs": self._logprobs(tokens), "finish_reason": None}

    def closing(self, index: int, text: str, reason: str) -> dict[str, Any]:
        """Return what was held back and why it ended."""
        return {"index": index, "delta": {"content": text} if text else {}, "logprobs": None, "finish_reason": reason}

    def whole(self, drawn: Drawn) -> dict[str, Any]:
        """Return the message."""
        message = {"role": "assistant", "content": drawn.text}
        return {
            "index": drawn.index,
            "message": message,
            "logprobs": self._logprobs(drawn.tokens),
            "finish_reason": drawn.end.finish_reason,
        }

    def _logprobs(self, tokens: Sequence[TokenEvent]) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        return {"content": [self._token(event) for event in tokens if event.token not in self.ends], "refusal": None}

    def _token(self, event: TokenEvent) -> dict[str, Any]:
        return {**self._entry(event.token, event.logprob), "top_logprobs": [self._entry(*best) for best in event.top]}

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": self.prompts.token_text(token),
            "logprob": logprob,
            "bytes": list(self.prompts.token_bytes(token)),
        }


@dataclass
class TextWords:
    """`/v1/completions`. Offsets count characters from the answer's beginning, so one of these serves one request."""

    prompts: Prompts
    with_logprobs: bool
    ends: frozenset[int]
    object: str = "text_completion"
    chunk_object: str = "text_completion"
    _offsets: dict[int, int] = field(default_factory=dict)

    def opening(self, index: int) -> None:
        """Say nothing: text has no role."""

    def piece(self, index: int, text: str, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
        """Return some text and its tokens."""
        return {"index": index, "text": text, "logprobs": self._logprobs(index, tokens), "finish_reason": None}

    def closing(self, index: int, text: str, reason: str) -> dict[str, Any]:
        """Return what was held back and why it ended."""
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}

    def whole(self, drawn: Drawn) -> dict[str, Any]:
        """Return the text."""
        logprobs = self._logprobs(drawn.index, drawn.tokens)
        return {
            "index": drawn.index,
            "text": drawn.text,
            "logprobs": logprobs,
            "finish_reason": drawn.end.finish_reason,
        }

    def _logprobs(self, index: int, tokens: Sequence[TokenEvent]) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        shown = [event for event in tokens if event.token not in self.ends]
        return {
            "tokens": [self.prompts.token_text(event.token) for event in shown],
            "token_logprobs": [event.logprob for event in shown],
            "top_logprobs": [{self.prompts.token_text(token): value for token, value in event.top} for event in shown],
            "text_offset": [self._advance(index, event) for event in shown],
        }

    def _advance(self, index: int, event: TokenEvent) -> int:
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + len(self.prompts.token_text(event.token))
        return offset


@dataclass(frozen=True)
class Envelope:
    """What surrounds the choices of one request."""

    prefix: str
    model: str
    fingerprint: str
    id: str = field(default_factory=lambda: token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def around(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Return a chunk or a whole answer."""
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


def openai_usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Return OpenAI's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
