"""JSON as the standard has it: no NaN, no number that overflows to infinity, no key twice, no half character, no abyss.

Python's reader takes all of these, and each has once travelled from a body to a sampler, or broken the answer that
refused it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from decodepool_sizing.api_errors import ApiError

MAX_DEPTH = 64
"""Containers inside containers. The deepest sound body (logprobs aside, which only go out) needs five."""

SHOWN_CHARACTERS = 60
"""How much of an offending value an error repeats."""

STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Possessive, and content with a string that never ends, so that a hostile body costs one pass."""

ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""How alone a body in UTF-8 can come by half a character."""

AS_SQUARE = bytes.maketrans(b"{}", b"[]")
ALL_BUT_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")


def read_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object that `data` is, or raise `ApiError` invalid_json."""
    _bound_depth(data)
    try:
        value = json.loads(
            data.decode(), parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique
        )
    except UnicodeDecodeError as error:
        raise ApiError("invalid_json", f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise ApiError("invalid_json", f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError("invalid_json", f"the body must be a JSON object, not {shown(value)}")
    if ESCAPED_SURROGATE.search(data):
        _refuse_surrogates(value)
    return value


def shown(value: object) -> str:
    """Return a value as JSON, cut to a readable length, for an error message."""
    if isinstance(value, list | dict) and len(value) > SHOWN_CHARACTERS:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = json.dumps(value, default=str)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def _bound_depth(data: bytes) -> None:
    """Refuse deep nesting before a parser recurses into it: each round takes the innermost pairs away, all at once."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    brackets = STRING.sub(b"", data).translate(AS_SQUARE, ALL_BUT_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        message = f"the body is nested deeper than {MAX_DEPTH} levels, or its brackets do not match"
        raise ApiError("invalid_json", message)


def _refuse_constant(name: str) -> None:
    raise ApiError("invalid_json", f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ApiError("invalid_json", f"{text[:SHOWN_CHARACTERS]} is too large for a number")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ApiError("invalid_json", f"the key {shown(name)} is there twice", name)
        found[name] = value
    return found


def _refuse_surrogates(value: Any) -> None:
    """Refuse a lone surrogate in any key or text: tokenizers, stop strings and answers would each take it otherwise."""
    for where, text in _texts(value, ()):
        try:
            text.encode()
        except UnicodeEncodeError:
            name = ".".join(where) or None
            message = f"is not Unicode text (a lone surrogate); got {shown(text)}"
            raise ApiError("invalid_value", f"{name}: {message}" if name else message, name) from None


def _texts(value: Any, where: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every key and text of a value, each with the path of what holds it."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _texts(each, (*where, str(index)))
    elif isinstance(value, dict):
        for name, each in value.items():
            yield where, name
            yield from _texts(each, (*where, name))
