"""The kinds of value that bodies are made of, each with its bounds: what OpenAPI shows is what is checked."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from decodepool_worker.engine.sampling import RANGES
from decodepool_worker.sessions.checks import SEED_LIMIT

MAX_IDS = 1 << 20
"""Ids in one list: longer than any context served, short enough to check in a blink."""

MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
MAX_FORKS = 64

TokenId = Annotated[int, Field(ge=0, lt=1 << 31, description="An id below the vocabulary's size.")]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True, min_length=1, max_length=MAX_IDS)]
Seed = Annotated[
    int,
    Field(ge=0, lt=SEED_LIMIT, description="Key of the random stream. Without one the worker picks it and says which."),
]
OpenAISeed = Annotated[
    int,
    Field(ge=-SEED_LIMIT // 2, lt=SEED_LIMIT, description="Key of the random stream; negative ones count modulo 2^64."),
]
MaxTokens = Annotated[
    int, Field(ge=1, lt=1 << 31, description="Tokens to draw at most. Without it: to the end of the context.")
]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]
StopStrings = Annotated[list[StopString], Field(fail_fast=True, max_length=MAX_STOPS)]
Stop = Annotated[StopString | StopStrings, Field(description="Text that ends the decode and is not part of its text.")]
StopIds = Annotated[
    list[TokenId], Field(fail_fast=True, max_length=256, description="Ids that end the decode, kept in the session.")
]


def within(name: str, description: str | None = None) -> Any:
    """Return the bounds that the sampler has for one of its numbers."""
    low, high = RANGES[name]
    return Field(ge=low, le=high, description=description)


Temperature = Annotated[float, within("temperature", "0 is greedy: the lowest id among equals.")]
TopK = Annotated[int, Field(ge=0, lt=1 << 31, description="Keep the k likeliest; 0 keeps all.")]
TopP = Annotated[float, within("top_p", "Keep the likeliest that together reach p.")]
MinP = Annotated[float, within("min_p", "Drop what is less likely than p times the likeliest.")]
RepetitionPenalty = Annotated[
    float, within("repetition_penalty", "Divide the logits of seen tokens; 1 changes nothing.")
]
PresencePenalty = Annotated[
    float, within("presence_penalty", "Subtract from the logits of seen tokens; 0 changes nothing.")
]
FrequencyPenalty = Annotated[
    float, within("frequency_penalty", "Subtract, once for each time, from the logits of seen tokens.")
]
Bias = Annotated[float, within("logit_bias")]
BiasId = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
LogitBias = Annotated[
    dict[BiasId, Bias], Field(fail_fast=True, max_length=1024, description="Added to the logits of these ids.")
]


class Body(BaseModel):
    """A body as it is checked: known fields only, strict types, finite numbers. null is a field that is not there."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any) -> Any:
        """Refuse the first unknown field by itself: a fault each would be built for all of them."""
        if not isinstance(value, dict) or value.keys() <= cls.model_fields.keys():
            return value
        unknown = next(name for name in value if name not in cls.model_fields)
        fault = InitErrorDetails(type="extra_forbidden", loc=(unknown,), input=value[unknown])
        raise ValidationError.from_exception_data(cls.__name__, [fault])


class Answer(BaseModel):
    """An answer as it is documented: the tests hold answers to it, serving does not spend time on that."""

    model_config = ConfigDict(extra="forbid")


class SamplingFields(Body):
    """How tokens are drawn. In a session these are defaults; in a decode they override them for that decode."""

    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: PresencePenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    logit_bias: LogitBias | None = None


def _refuse(value: Any) -> None:
    if value is None or value is False or value in ([], {}):
        return
    raise PydanticCustomError("unsupported", "this server does not support it")


Unsupported = Annotated[
    None, BeforeValidator(_refuse), Field(description="Not supported: refused unless null, false, [] or {}.")
]
"""A field of OpenAI's whose meaning would change the answer: refused by name instead of ignored."""

STRUCTURED = ("json_object", "json_schema")


def _refuse_constraint(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError("unsupported", "tokens are drawn freely: grammars and JSON schemas are not built yet")


Constraint = Annotated[None, BeforeValidator(_refuse_constraint), Field(description="Not supported yet: refused.")]
"""A rule that every token would have to obey: whoever asks for one must not get an answer without it."""


def refuse_structured(value: Any) -> Any:
    """Refuse OpenAI's response formats that are constraints; whatever else is wrong with a format is said later."""
    if isinstance(value, dict) and value.get("type") in STRUCTURED:
        _refuse_constraint(value)
    return value


Ignored = Annotated[Any, Field(description="Taken and ignored: it does not change the answer.")]
"""A field of OpenAI's that carries no meaning here."""


class ConstraintFields(Body):
    """What every token would have to obey."""

    grammar: Constraint = None
    json_schema: Constraint = None
