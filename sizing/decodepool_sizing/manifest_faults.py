"""Faults of a manifest as lines: the field's path, then what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from decodepool_sizing.errors import one_line, told_url


def fault_lines(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Return a line for each fault that pydantic found in a document for `root`."""
    return [_line(fault, root) for fault in error.errors(include_url=False)]


def _line(fault: ErrorDetails, root: type[BaseModel]) -> str:
    path = ".".join(str(part) for part in fault["loc"]) or "manifest"
    return one_line(" ".join(f"{path}: {_reason(fault, root)}".split()))


def _reason(fault: ErrorDetails, root: type[BaseModel]) -> str:
    match fault["type"]:
        case "missing":
            return "missing"
        case "extra_forbidden":
            return f"unknown field{_suggestion(fault['loc'], root)}"
        case "string_pattern_mismatch":
            return f"{_shown(fault['input'])} does not match {fault['ctx']['pattern']}"
        case "value_error":
            return str(fault["ctx"]["error"])
    return fault["msg"].replace("Input should be", "should be", 1) + f", not {_shown(fault['input'])}"


def _suggestion(path: Sequence[str | int], root: type[BaseModel]) -> str:
    model: type[BaseModel] | None = root
    for part in path[:-1]:
        model = _field_model(model, part) if model else None
    names = [field.alias or name for name, field in model.model_fields.items()] if model else []
    close = get_close_matches(str(path[-1]), names, n=1)
    return f", did you mean {close[0]}?" if close else ""


def _field_model(model: type[BaseModel], part: str | int) -> type[BaseModel] | None:
    for name, field in model.model_fields.items():
        if (field.alias or name) == part:
            kinds = (field.annotation, *get_args(field.annotation))
            return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    return None


def _shown(value: Any) -> str:
    """Scalars as they are; never the inside of a structure, which a stranger may have made without end."""
    if isinstance(value, str) and "://" in value:
        return repr(told_url(value))
    if isinstance(value, str | int | float | bool | None):
        return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return f"a {type(value).__name__}"
