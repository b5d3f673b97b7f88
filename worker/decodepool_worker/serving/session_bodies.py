"""Bodies of the session API, each in one place: what is checked is what `/openapi.json` shows."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from decodepool_worker.serving.fields import (
    MAX_FORKS,
    MAX_TOP_LOGPROBS,
    Body,
    ConstraintFields,
    MaxTokens,
    SamplingFields,
    Seed,
    Stop,
    StopIds,
    TokenIds,
)
from decodepool_worker.text.conversations import Turn

MAX_MESSAGES = 4096
MAX_PARTS = 1024
"""Of one message's content."""

Text = Annotated[str, Field(min_length=1)]


class TextPart(Body):
    """One part of a message's content; text is the only kind that these models read."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: Any) -> Any:
        """Refuse an image, say, as what it is: not for the names of its fields."""
        if isinstance(value, dict) and isinstance(value.get("type"), str) and value["type"] != "text":
            raise PydanticCustomError("unsupported", "this model reads parts of type text alone")
        return value


Parts = Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_PARTS)]


class Message(Body):
    """A turn of a conversation, as OpenAI's clients write it. Special tokens spelled in its content are plain text."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Parts | None
    name: str | None = None
    refusal: None = None
    annotations: list[None] | None = Field(default=None, max_length=0)
    audio: None = None
    function_call: None = None
    tool_calls: list[None] | None = Field(default=None, max_length=0)
    tool_call_id: str | None = None

    def turn(self) -> Turn:
        """The message as a template sees it: parts on lines of their own, a developer's words the system's."""
        parts = self.content if isinstance(self.content, list) else []
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in parts)
        role = "system" if self.role == "developer" else self.role
        return Turn(role, content, self.name, self.tool_call_id)


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


def exactly_one(body: Body, names: tuple[str, ...]) -> None:
    """Raise unless one of the fields is given. Where none is, the first is told as the one that is missing."""
    given = [name for name in names if getattr(body, name) is not None]
    if len(given) == 1:
        return
    wanted = ", ".join(names)
    if given:
        said = {"wanted": wanted, "got": " and ".join(given)}
        raise PydanticCustomError("one_of", "give exactly one of {wanted}; got {got}", said)
    none = PydanticCustomError("none_of", "give exactly one of {wanted}", {"wanted": wanted})
    raise ValidationError.from_exception_data(
        type(body).__name__, [InitErrorDetails(type=none, loc=names[:1], input=None)]
    )


class CreateSession(SamplingFields, ConstraintFields):
    """A new session: its first tokens, its context, its seed, and how it draws by default."""

    tokens: TokenIds | None = None
    prompt: Text | None = Field(
        default=None, description="Text; the vocabulary's BOS is put before it where the model wants one."
    )
    messages: Messages | None = Field(default=None, description="Rendered by the model's chat template.")
    parse_special: bool | None = Field(
        default=None, description="Read special tokens spelled in `prompt` as such; false by default."
    )
    add_generation_prompt: bool | None = Field(
        default=None, description="End `messages` with the head of an answer; true by default."
    )
    context_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = Field(
        default=None, description="Tokens this session may hold; the worker's context by default, and at most that."
    )
    seed: Seed | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        exactly_one(self, ("tokens", "prompt", "messages"))
        return self


class AppendTokens(Body):
    """Tokens put at the end of a session, evaluated in chunks beside everybody's decode rows."""

    tokens: TokenIds | None = None
    text: Text | None = Field(default=None, description="Tokenized by itself, without BOS.")
    messages: Messages | None = Field(
        default=None,
        description="New turns: the present turn is closed if it is open, then these follow in the template's words.",
    )
    parse_special: bool | None = None
    add_generation_prompt: bool | None = None
    length: Annotated[int, Field(ge=1, lt=1 << 31)] | None = Field(
        default=None, description="How many tokens the session must hold before; 409 where it does not."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        exactly_one(self, ("tokens", "text", "messages"))
        return self


class StopFields(SamplingFields, ConstraintFields):
    """What ends a decode, and whether it is streamed."""

    stop: Stop | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = Field(default=None, description="Go on past the model's end tokens; false by default.")
    stream: bool | None = Field(
        default=None, description="Server-sent events instead of one JSON answer; false by default."
    )

    def stop_strings(self) -> tuple[str, ...]:
        """The stop texts as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class DecodeSession(StopFields):
    """One decode. Without `max_tokens` it goes on to an end token, a stop, or the end of the context."""

    max_tokens: MaxTokens | None = None
    logprobs: bool | None = Field(default=None, description="Log-probabilities of the raw logits for each token drawn.")
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = Field(
        default=None, description="Implies `logprobs`."
    )

    def wanted_logprobs(self) -> int | None:
        """None without log-probabilities, else how many of the best beside the drawn token's own."""
        if self.top_logprobs is not None:
            return self.top_logprobs
        return 0 if self.logprobs else None


class ForkSession(Body):
    """Copies of a session that share its pages."""

    at: Annotated[int, Field(ge=1, lt=1 << 31)] | None = Field(
        default=None, description="How many tokens a copy keeps; all by default."
    )
    n: Annotated[int, Field(ge=1, le=MAX_FORKS)] | None = Field(
        default=None, description="How many copies; one by default."
    )
    seed: Seed | None = Field(
        default=None, description="Copy i draws with seed + i; without it each copy keeps the session's seed."
    )


class Tokenize(Body):
    """Text to ids."""

    text: str
    add_special: bool | None = Field(
        default=None, description="Put BOS before it where the model wants one; false by default."
    )
    parse_special: bool | None = Field(
        default=None, description="Read special tokens spelled in the text as such; false by default."
    )


class Detokenize(Body):
    """Ids to text; bytes that are no UTF-8 become U+FFFD by Python's `replace` rule."""

    tokens: Annotated[TokenIds, Field(min_length=0)]
