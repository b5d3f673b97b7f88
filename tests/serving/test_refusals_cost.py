"""A refused body costs what reading its JSON costs: one fault is built, however many there are."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from decodepool_sizing.api_errors import ApiError
from decodepool_worker.serving.fields import Body
from decodepool_worker.serving.openai_bodies import ChatCompletion, Completion
from decodepool_worker.serving.routes import ROUTES
from decodepool_worker.serving.session_bodies import MAX_PARTS, CreateSession, DecodeSession
from decodepool_worker.serving.strict_json import SHOWN_CHARACTERS, shown
from decodepool_worker.serving.validation import read_body
from pydantic import ValidationError

MANY = 300_000
MOST_FAULTS = 8
"""One for each branch of a union, and for each field of one message at most."""

MOST_BYTES = 1 << 20
ANSWER_CHARACTERS = 1000
PART = {"type": "text", "text": ""}


def chat(content: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}]}


def keys(count: int) -> dict[str, int]:
    return {str(index): 0 for index in range(count)}


HOSTILE = [
    pytest.param(CreateSession, chat([1] * MANY), "messages.0.content.0", id="parts that are none"),
    pytest.param(CreateSession, chat([PART] * MANY), "messages.0.content", id="too many parts"),
    pytest.param(CreateSession, chat([{**PART, **keys(MANY)}]), "messages.0.content.0.0", id="keys of a part"),
    pytest.param(CreateSession, {"messages": [1] * MANY}, "messages.0", id="messages that are none"),
    pytest.param(CreateSession, {"messages": [keys(MANY)]}, "messages.0.0", id="keys of a message"),
    pytest.param(CreateSession, keys(MANY), "0", id="keys of a session"),
    pytest.param(DecodeSession, {"logit_bias": keys(MANY)}, "logit_bias", id="too many biases"),
    pytest.param(DecodeSession, {"stop": [1] * MANY}, "stop.0", id="stops that are none"),
    pytest.param(Completion, {"model": "m", "prompt": [[]] * MANY}, "prompt.0", id="prompts that are empty"),
    pytest.param(
        ChatCompletion, {"model": "m", **chat("x"), "modalities": [1] * MANY}, "modalities.0", id="modalities"
    ),
]


@pytest.mark.parametrize(("model", "body"), [pytest.param(*case.values[:2], id=case.id) for case in HOSTILE])
def test_a_hostile_body_has_few_faults_built_in_little_memory(model: type[Body], body: dict[str, object]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValidationError) as caught:
            model.model_validate(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.error_count() <= MOST_FAULTS
    assert peak_bytes < MOST_BYTES


@pytest.mark.parametrize(("model", "body", "param"), HOSTILE)
def test_a_hostile_body_is_refused_in_no_time_by_its_first_fault(
    model: type[Body], body: dict[str, object], param: str
) -> None:
    data = json.dumps(body).encode()
    began = time.process_time()
    with pytest.raises(ApiError) as caught:
        read_body(model, data)
    assert time.process_time() - began < 4
    assert caught.value.param == param
    assert len(caught.value.message) < ANSWER_CHARACTERS


def test_every_list_of_a_body_ends_at_its_first_fault() -> None:
    bodies = [route.body for route in ROUTES if route.body]
    lists = [each for body in bodies for each in _containers(body.__pydantic_core_schema__)]
    assert len(lists) > len(bodies)
    assert not [each for each in lists if not each.get("fail_fast") and each.get("max_length") != 0]


def _containers(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the lists and dicts of a core schema."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "dict"):
            yield schema
        for each in schema.values():
            yield from _containers(each)
    elif isinstance(schema, list | tuple):
        for each in schema:
            yield from _containers(each)


def test_a_message_has_as_many_parts_as_the_document_says() -> None:
    read_body(CreateSession, json.dumps(chat([PART] * MAX_PARTS)).encode())
    with pytest.raises(ApiError, match=str(MAX_PARTS)):
        read_body(CreateSession, json.dumps(chat([PART] * (MAX_PARTS + 1))).encode())


LONG = "k" * 1_000_000


@pytest.mark.parametrize(
    "data",
    [
        f'{{"{LONG}": 1}}',
        f'{{"{LONG}": 1, "{LONG}": 2}}',
        f'{{"logit_bias": {{"{LONG}": 1}}}}',
        f'{{"metadata": {{"{LONG}": "\\ud800"}}}}',
        f'{{"tokens": [["{LONG}"]]}}',
    ],
    ids=["unknown", "twice", "of a bias", "over half a character", "inside a value"],
)
def test_a_refusal_repeats_little_of_a_long_name(data: str) -> None:
    for model in (CreateSession, ChatCompletion):
        with pytest.raises(ApiError) as caught:
            read_body(model, data.encode())
        assert len(json.dumps(caught.value.body())) < ANSWER_CHARACTERS


class Watched(list[object]):
    """A list that counts what is taken of it."""

    taken = 0

    def __iter__(self) -> Iterator[object]:
        for each in super().__iter__():
            self.taken += 1
            yield each


def test_of_a_long_value_only_what_is_shown_is_written() -> None:
    inner = Watched([1] * MANY)
    assert shown([[inner]]).startswith("[[[1, 1, ")
    assert len(shown([[inner]])) == SHOWN_CHARACTERS
    assert inner.taken < 3 * SHOWN_CHARACTERS


@pytest.mark.parametrize("value", [[], {}, [1, "a", None, True, 1.5], {"a": {"b": []}, "c": "\u00e9"}, "x", -3])
def test_a_short_value_is_shown_as_json(value: object) -> None:
    assert shown(value) == json.dumps(value)
