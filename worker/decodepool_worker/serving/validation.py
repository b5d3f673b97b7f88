"""From bytes to a checked body, or to an `ApiError` that names the field and the value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from decodepool_sizing.api_errors import ApiError
from pydantic import ValidationError

from decodepool_worker.serving.fields import Body
from decodepool_worker.serving.strict_json import cut, read_object, shown

B = TypeVar("B", bound=Body)

CODES = {
    "extra_forbidden": "unknown_field",
    "missing": "missing_field",
    "none_of": "missing_field",
    "unsupported": "unsupported_parameter",
}
REMARKS = {
    "extra_forbidden": "no such field",
    "missing": "required",
    "finite_number": "must be finite",
}


def read_body(model: type[B], data: bytes) -> B:
    """Return the body that `data` holds, or raise `ApiError` 400. An empty `data` reads as `{}`."""
    value = read_object(data) if data.strip() else {}
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _refusal(error, value) from None


def checked_ids(ids: Iterable[int], vocabulary_size: int, param: str, *, keyed: bool = False) -> None:
    """Raise `ApiError` for the first id that the vocabulary does not have. `keyed` ids are named by value."""
    for index, token in enumerate(ids):
        if token >= vocabulary_size:
            where = f"{param}.{token if keyed else index}"
            raise ApiError(
                "invalid_value", f"{where}: id {token} is not below the vocabulary's {vocabulary_size}", where
            )


def _refusal(error: ValidationError, body: dict[str, Any]) -> ApiError:
    """Choose the fault that reached deepest into the body: of a union's branches, the one the client meant.

    Of equally deep ones it is the branch whose type the value has.
    """
    faults = error.errors(include_url=False, include_context=False)
    fault = max(faults, key=lambda each: (len(_path(each["loc"], body)), not each["type"].endswith("_type")))
    path = _path(fault["loc"], body)
    kind = fault["type"]
    if kind in ("extra_forbidden", "missing", "none_of"):
        path = [*path, *fault["loc"][-1:]] if path[-1:] != list(fault["loc"][-1:]) else path
    name = ".".join(cut(str(step)) for step in path) or None
    remark = REMARKS.get(kind, _lowered(fault["msg"]))
    got = "" if kind in ("missing", "none_of", "one_of") or not path else f"; got {shown(fault['input'])}"
    message = f"{name}: {remark}{got}" if name else remark
    return ApiError(CODES.get(kind, "invalid_value"), message, name)


def _path(where: Sequence[int | str], body: Any) -> list[int | str]:
    """Keep the steps that lead through the body, and drop the names pydantic gives to a union's branches."""
    path: list[int | str] = []
    for step in where:
        if _leads_into(step, body):
            body = body[step]
            path.append(step)
    return path


def _leads_into(step: int | str, body: Any) -> bool:
    if isinstance(body, list):
        return isinstance(step, int) and step < len(body)
    return isinstance(body, dict) and step in body


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
