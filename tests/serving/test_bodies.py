"""A33 and its kin: whatever the bytes, the answer is a 400 that names field and value, in JSON."""

from __future__ import annotations

import json
import math
import time
from typing import get_args

import pytest
from decodepool_sizing.api_errors import ApiError
from decodepool_worker.engine.sampling import RANGES
from decodepool_worker.serving.fields import Body, SamplingFields
from decodepool_worker.serving.openai_bodies import ChatCompletion, Completion
from decodepool_worker.serving.session_bodies import AppendTokens, CreateSession, DecodeSession, ForkSession, Tokenize
from decodepool_worker.serving.validation import read_body

CHAT = '"model": "m", "messages": [{"role": "user", "content": "x"}]'
JSON_OBJECT = '"response_format": {"type": "json_object"}'
IMAGE = '{"type": "image_url", "image_url": {"url": "https://a/b.png"}}'
JSON_SCHEMA = '"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}'


def refusal(model: type[Body], data: bytes | str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_body(model, data if isinstance(data, bytes) else data.encode())
    json.dumps(caught.value.body(), allow_nan=False, ensure_ascii=False).encode()
    assert caught.value.status == 400
    return caught.value


NO_NUMBER = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"0.7"', "true", "[1]", "{}", "1" * 5000]


@pytest.mark.parametrize("value", NO_NUMBER, ids=lambda text: text[:12])
@pytest.mark.parametrize("name", [name for name in SamplingFields.model_fields if name != "logit_bias"])
def test_what_is_no_number_is_refused(name: str, value: str) -> None:
    fault = refusal(DecodeSession, f'{{"{name}": {value}}}')
    assert fault.code == "invalid_json" or fault.param == name


SURROGATE = r"\ud800"
CHAT_WITH = '{"model": "m", "messages": [{"role": "user", "content": %s}]}'


@pytest.mark.parametrize(
    ("model", "data", "param"),
    [
        (CreateSession, f'{{"prompt": "a{SURROGATE}"}}', "prompt"),
        (CreateSession, f'{{"messages": [{{"role": "user", "content": "{SURROGATE}"}}]}}', "messages.0.content"),
        (CreateSession, f'{{"messages": [{{"role": "user", "{SURROGATE}": 1}}]}}', "messages.0"),
        (AppendTokens, f'{{"text": "{SURROGATE}"}}', "text"),
        (ChatCompletion, CHAT_WITH % f'[{{"type": "text", "text": "{SURROGATE}"}}]', "messages.0.content.0.text"),
        (ChatCompletion, f'{{{CHAT}, "user": "{SURROGATE}"}}', "user"),
        (ChatCompletion, f'{{{CHAT}, "stop": ["x", "{SURROGATE}"]}}', "stop.1"),
        (Completion, f'{{"model": "m", "prompt": ["x", "{SURROGATE}"]}}', "prompt.1"),
        (Tokenize, r'{"text": "\udcff\ud800"}', "text"),
        (Tokenize, f'{{"{SURROGATE}": 1}}', None),
    ],
)
def test_half_a_character_is_refused_wherever_it_stands(model: type[Body], data: str, param: str | None) -> None:
    fault = refusal(model, data)
    assert (fault.code, fault.param) == ("invalid_value", param)
    assert "lone surrogate" in fault.message


def test_two_halves_are_a_character() -> None:
    assert read_body(Tokenize, rb'{"text": "\ud83d\ude00"}').text == "\U0001f600"


def test_a_refusal_can_be_written_whatever_it_repeats() -> None:
    fault = refusal(CreateSession, f'{{"{SURROGATE}": 1, "{SURROGATE}": 2}}')
    assert fault.code == "invalid_json"
    json.dumps(fault.body(), ensure_ascii=False).encode()


NO_ID = ["NaN", "1e999", "-1", "2147483648", "9223372036854775808", "1.0", "true", "null", '"5"', "[1]"]


@pytest.mark.parametrize("value", NO_ID)
@pytest.mark.parametrize(("model", "name"), [(CreateSession, "tokens"), (DecodeSession, "stop_token_ids")])
def test_what_is_no_id_is_refused_and_its_place_named(model: type[Body], name: str, value: str) -> None:
    fault = refusal(model, f'{{"{name}": [1, {value}]}}')
    assert fault.code == "invalid_json" or fault.param == f"{name}.1"


@pytest.mark.parametrize("key", ["-1", "1.0", "x", "", " 1", "1e3", "01", "99999999999"])
def test_logit_bias_keys_are_ids(key: str) -> None:
    assert "logit_bias" in (refusal(DecodeSession, json.dumps({"logit_bias": {key: 1}})).param or "")


@pytest.mark.parametrize("value", ["null", "0.7", "1", "0", "-0.0", "1e6"])
def test_numbers_are_taken_and_null_is_the_default(value: str) -> None:
    read = read_body(DecodeSession, f'{{"temperature": {value}}}'.encode())
    assert read.temperature == (None if value == "null" else float(value))


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b'"x"',
        b"1",
        b"null",
        b"{",
        b"\x00",
        b'{"a":1,"a":2}',
        b'{"tokens":[1],"tokens":[2]}',
        b"\xff",
        b"\xef\xbb\xbf{}",
        '{"tokens":[1]}'.encode("utf-16"),
        b"[" * 5000 + b"]" * 5000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"a":' * 5000,
        b"nan",
        b"{'tokens': [1]}",
        b'{"tokens": [1],}',
    ],
    ids=lambda data: repr(data[:16]),
)
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    assert refusal(CreateSession, data).code == "invalid_json"


@pytest.mark.parametrize(
    "data",
    [
        b'{"tokens": [1' + b",[]" * 700_000,
        b'{"tokens": ["5"' + b',"5"' * 700_000 + b"]}",
        b'"' + b'\\"' * 1_000_000,
        b'{"tokens": [1' + b",1" * 1_100_000 + b"]}",
        b'{"prompt": "' + b"[" * 1_000_000,
        b'{"a": ' + b"[" * 60 + b'"",' * 2_500_000 + rb'"\ud800"' + b"]" * 60 + b"}",
    ],
    ids=["brackets", "strings", "quotes", "ids", "brackets in a string", "half a character among many texts"],
)
def test_large_hostile_bodies_cost_little(data: bytes) -> None:
    began = time.process_time()
    refusal(CreateSession, data)
    assert time.process_time() - began < 4


@pytest.mark.parametrize(
    ("model", "data", "code", "param"),
    [
        (CreateSession, "{}", "missing_field", "tokens"),
        (CreateSession, "", "missing_field", "tokens"),
        (CreateSession, '{"tokens": null, "seed": 1}', "missing_field", "tokens"),
        (AppendTokens, '{"parse_special": true}', "missing_field", "tokens"),
        (CreateSession, '{"tokens": [1], "prompt": "x"}', "invalid_value", None),
        (CreateSession, '{"tokens": []}', "invalid_value", "tokens"),
        (CreateSession, '{"prompt": ""}', "invalid_value", "prompt"),
        (CreateSession, '{"prompt": "\\ud800"}', "invalid_value", "prompt"),
        (CreateSession, '{"tokens": [1], "tempurature": 1}', "unknown_field", "tempurature"),
        (CreateSession, '{"messages": [{"role": "user"}]}', "missing_field", "messages.0.content"),
        (CreateSession, '{"messages": [{"role": "bob", "content": "x"}]}', "invalid_value", "messages.0.role"),
        (CreateSession, '{"messages": []}', "invalid_value", "messages"),
        (CreateSession, '{"tokens": [1], "seed": 18446744073709551616}', "invalid_value", "seed"),
        (CreateSession, '{"tokens": [1], "seed": 1.0}', "invalid_value", "seed"),
        (CreateSession, '{"tokens": [1], "context_tokens": 0}', "invalid_value", "context_tokens"),
        (DecodeSession, '{"max_tokens": 0}', "invalid_value", "max_tokens"),
        (DecodeSession, '{"max_tokens": -1}', "invalid_value", "max_tokens"),
        (DecodeSession, '{"max_tokens": 1.5}', "invalid_value", "max_tokens"),
        (DecodeSession, '{"top_p": 1.01}', "invalid_value", "top_p"),
        (DecodeSession, '{"stop": [""]}', "invalid_value", "stop.0"),
        (DecodeSession, '{"stop": [1]}', "invalid_value", "stop.0"),
        (CreateSession, '{"tokens": ["a"], "tempurature": 1}', "unknown_field", "tempurature"),
        (CreateSession, '{"messages": [{"role": "user", "content": "x", "n": 1}]}', "unknown_field", "messages.0.n"),
        (DecodeSession, '{"stream": 1}', "invalid_value", "stream"),
        (DecodeSession, '{"stream": "true"}', "invalid_value", "stream"),
        (ForkSession, '{"at": 0}', "invalid_value", "at"),
        (ForkSession, '{"n": 65}', "invalid_value", "n"),
        (Completion, '{"model": "m", "prompt": []}', "invalid_value", "prompt"),
        (Completion, '{"model": "m", "prompt": [1, "a"]}', "invalid_value", "prompt.1"),
        (Completion, '{"model": "m", "prompt": "a", "suffix": "b"}', "unsupported_parameter", "suffix"),
        (Completion, '{"model": "m", "prompt": "a", "echo": true}', "unsupported_parameter", "echo"),
        (ChatCompletion, f'{{{CHAT}, "tools": [{{}}]}}', "unsupported_parameter", "tools"),
        (
            CreateSession,
            f'{{"messages": [{{"role": "user", "content": [{IMAGE}]}}]}}',
            "unsupported_parameter",
            "messages.0.content.0",
        ),
        (CreateSession, '{"prompt": "a", "grammar": "root ::= [0-9]+"}', "unsupported_parameter", "grammar"),
        (CreateSession, '{"prompt": "a", "json_schema": {}}', "unsupported_parameter", "json_schema"),
        (DecodeSession, '{"grammar": ""}', "unsupported_parameter", "grammar"),
        (DecodeSession, '{"json_schema": {"type": "object"}}', "unsupported_parameter", "json_schema"),
        (ChatCompletion, f"{{{CHAT}, {JSON_SCHEMA}}}", "unsupported_parameter", "response_format"),
        (ChatCompletion, f"{{{CHAT}, {JSON_OBJECT}}}", "unsupported_parameter", "response_format"),
        (ChatCompletion, f'{{{CHAT}, "top_logprobs": 2}}', "invalid_value", None),
        (ChatCompletion, f'{{{CHAT}, "stream_options": {{}}}}', "invalid_value", None),
    ],
)
def test_a_refusal_names_the_field(model: type[Body], data: str, code: str, param: str | None) -> None:
    fault = refusal(model, data)
    assert (fault.code, fault.param) == (code, param)
    assert param is None or fault.message.startswith(param)


def test_where_none_of_several_fields_is_given_all_are_told() -> None:
    assert refusal(CreateSession, "{}").message == "tokens: give exactly one of tokens, prompt, messages"


@pytest.mark.parametrize(
    "extra",
    [
        '"user": "u"',
        '"metadata": {"a": "b"}',
        '"store": true',
        '"tools": []',
        '"tools": null',
        '"seed": -1',
        '"stop": null',
        '"response_format": {"type": "text"}',
        '"logit_bias": {"50256": -100}',
        '"parallel_tool_calls": true',
        '"n": null',
    ],
)
def test_what_does_not_change_the_answer_is_taken(extra: str) -> None:
    read_body(ChatCompletion, f"{{{CHAT}, {extra}}}".encode())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [('"a"', ["a"]), ('["a", "b"]', ["a", "b"]), ("[1, 2]", [[1, 2]]), ("[[1], [2, 3]]", [[1], [2, 3]]), ('""', [""])],
)
def test_prompts_come_in_four_shapes(prompt: str, prompts: list[object]) -> None:
    assert read_body(Completion, f'{{"model": "m", "prompt": {prompt}}}'.encode()).prompts() == prompts


def test_every_numeric_field_is_bounded_in_the_schema() -> None:
    for name, field in SamplingFields.model_fields.items():
        bounds = [type(each).__name__ for each in get_args(get_args(field.annotation)[0])]
        assert name == "logit_bias" or bounds, name


@pytest.mark.parametrize(("name", "bounds"), RANGES.items(), ids=RANGES)
def test_a_number_is_taken_exactly_where_the_sampler_takes_it(name: str, bounds: tuple[float, float]) -> None:
    def body(value: float) -> bytes:
        return json.dumps({name: {"1": value} if name == "logit_bias" else value}).encode()

    for bound, beyond in zip(bounds, (-math.inf, math.inf), strict=True):
        read_body(DecodeSession, body(bound))
        assert refusal(DecodeSession, body(math.nextafter(bound, beyond))).code == "invalid_value"
