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
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > SHOWN_CHARACTERS:
            break
    return cut(text)


def cut(text: str) -> str:
    """Return a text, or its beginning if it is longer than an error repeats."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def _pieces(value: object) -> Iterator[str]:
    """Yield a value's JSON bit by bit, so that no more is written than is shown; of a text, enough to be cut."""
    if isinstance(value, str):
        yield json.dumps(value[: SHOWN_CHARACTERS + 1])
    elif isinstance(value, list):
        yield "["
        for index, each in enumerate(value):
            yield ", " if index else ""
            yield from _pieces(each)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for index, (name, each) in enumerate(value.items()):
            yield ", " if index else ""
            yield from _pieces(name)
            yield ": "
            yield from _pieces(each)
        yield "}"
    else:
        yield json.dumps(value, default=str)


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
            raise ApiError("invalid_json", f"the key {shown(name)} is there twice", cut(name))
        found[name] = value
    return found


def _refuse_surrogates(body: dict[str, Any]) -> None:
    """Refuse a lone surrogate in any key or text: tokenizers, stop strings and answers would each take it otherwise."""
    found = _half_character(body)
    if found:
        where, text = found
        name = ".".join(cut(str(step)) for step in where) or None
        message = f"is not Unicode text (a lone surrogate); got {shown(text)}"
        raise ApiError("invalid_value", f"{name}: {message}" if name else message, name)


def _half_character(body: dict[str, Any]) -> tuple[list[int | str], str] | None:
    """Find the first key or text that is no Unicode: the path of what holds it, and the text.

    No call a value: deep in a stack, where Python's frames need one more block of memory, each call would map one.
    """
    where: list[int | str] = []
    unread: list[Iterator[tuple[int | str, Any]]] = [iter(body.items())]
    while unread:
        for step, each in unread[-1]:
            try:
                if isinstance(step, str):
                    step.encode()
                if isinstance(each, str):
                    each.encode()
            except UnicodeEncodeError as error:
                return (where if error.object is step else [*where, step]), error.object
            if isinstance(each, dict | list):
                where.append(step)
                unread.append(iter(each.items() if isinstance(each, dict) else enumerate(each)))
                break
        else:
            unread.pop()
            del where[-1:]
    return None
