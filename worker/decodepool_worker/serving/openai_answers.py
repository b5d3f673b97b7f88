"""What OpenAI's two completion endpoints answer. The official client's own models are the reference."""

from __future__ import annotations

from typing import Literal

from decodepool_worker.serving.fields import Answer

OpenAIFinish = Literal["stop", "length"]


class PromptDetails(Answer):
    """Tokens of the prompt that were in the prefix cache."""

    cached_tokens: int


class OpenAIUsage(Answer):
    """Tokens read, drawn, and together, over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class ChatTop(Answer):
    """One of the likeliest tokens."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(ChatTop):
    """The drawn token and the likeliest beside it."""

    top_logprobs: list[ChatTop]


class ChatLogprobs(Answer):
    """Log-probabilities of an answer."""

    content: list[ChatLogprob]
    refusal: None


class ChatMessage(Answer):
    """The answer's text."""

    role: Literal["assistant"]
    content: str


class ChatChoice(Answer):
    """One of n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: OpenAIFinish


class ChatAnswer(Answer):
    """`POST /v1/chat/completions` without a stream."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: OpenAIUsage


class TextLogprobs(Answer):
    """Log-probabilities in the older endpoint's columns."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class TextChoice(Answer):
    """One of the answers."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: OpenAIFinish


class TextAnswer(Answer):
    """`POST /v1/completions` without a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: OpenAIUsage
