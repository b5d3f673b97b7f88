"""Bodies of OpenAI's two endpoints: what changes the answer is honoured or refused by name, never ignored."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from decodepool_worker.serving.fields import (
    MAX_FORKS,
    MAX_TOP_LOGPROBS,
    Body,
    Ignored,
    MaxTokens,
    OpenAISeed,
    TokenIds,
    Unsupported,
    refuse_structured,
)
from decodepool_worker.serving.session_bodies import Messages, StopFields

MAX_PROMPTS = 64
DEFAULT_COMPLETION_TOKENS = 16


class StreamOptions(Body):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    include_obfuscation: Ignored = None


class TextFormat(Body):
    """The only response format there is so far."""

    type: Literal["text"]


class OpenAIFields(StopFields):
    """What both endpoints share. `temperature` is 1 by default, as OpenAI has it."""

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_FORKS)] | None = Field(
        default=None, description="Answers; answer i draws with seed + i."
    )
    seed: OpenAISeed | None = None
    stream_options: StreamOptions | None = None
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "stream_options needs stream: true")
        return self

    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatCompletion(OpenAIFields):
    """`POST /v1/chat/completions`. Without `max_tokens` an answer may go to the end of the context."""

    messages: Messages
    max_completion_tokens: MaxTokens | None = None
    max_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: Annotated[TextFormat | None, BeforeValidator(refuse_structured)] = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    function_call: Literal["none", "auto"] | None = None
    parallel_tool_calls: Ignored = None
    prediction: Ignored = None
    tools: Unsupported = None
    functions: Unsupported = None
    audio: Unsupported = None
    reasoning_effort: Unsupported = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "top_logprobs needs logprobs: true")
        return self

    def limit(self) -> int | None:
        """Tokens to draw at most; the newer name wins."""
        return self.max_completion_tokens or self.max_tokens

    def wanted_logprobs(self) -> int | None:
        """None without log-probabilities, else how many of the best."""
        return (self.top_logprobs or 0) if self.logprobs else None


PromptTexts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
PromptIds = Annotated[list[TokenIds], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]


class Completion(OpenAIFields):
    """`POST /v1/completions`. A list of prompts gives n answers each: answer j of prompt i has index i n + j."""

    prompt: str | TokenIds | PromptTexts | PromptIds
    max_tokens: MaxTokens | None = Field(default=None, description="16 by default, as OpenAI has it.")
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: Literal[1] | None = None
    echo: Unsupported = None
    suffix: Unsupported = None

    def limit(self) -> int:
        """Tokens to draw at most."""
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS

    def prompts(self) -> list[str | list[int]]:
        """One entry a prompt, each a text or a list of ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [entry for entry in self.prompt if isinstance(entry, int)]
        return [ids] if ids else [entry for entry in self.prompt if not isinstance(entry, int)]

    def path(self, index: int) -> str:
        """Where one of the prompts is in the body."""
        is_alone = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return "prompt" if is_alone else f"prompt.{index}"
