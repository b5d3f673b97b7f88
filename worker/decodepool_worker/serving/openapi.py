"""`/openapi.json`, made from the route table and the bodies' models: there is no second description to fall behind."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from decodepool_sizing.api_errors import FAULTS
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from decodepool_worker.serving.answers import ErrorAnswer
from decodepool_worker.serving.routes import DocumentedRoute

EVENT = {
    "description": "With `stream`: one event. Its data is JSON, or `[DONE]`; docs/api.md says which events there are.",
    "type": "object",
    "properties": {"event": {"type": "string"}, "id": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}

PATH_PARAMETER = re.compile(r"\{(\w+)\}")


def document(routes: Sequence[DocumentedRoute], version: str, *, keys: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these routes; `keys` says whether API keys are asked for."""
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for route in routes:
        paths[route.path][route.method.lower()] = _operation(route, keys=keys)
    schemes = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "decodepool worker", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": dict(paths),
        "components": {"schemas": _schemas(routes), **({"securitySchemes": schemes} if keys else {})},
    }


def _schemas(routes: Iterable[DocumentedRoute]) -> dict[str, Any]:
    models: dict[type[BaseModel], None] = {ErrorAnswer: None}
    for route in routes:
        models.update({model: None for model in (route.body, route.answer) if model})
    _, schema = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    found: dict[str, Any] = schema["$defs"]
    return found


def _operation(route: DocumentedRoute, *, keys: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": {str(route.status): _success(route), **_refusals(route, keys=keys)},
    }
    parameters = [_path_parameter(name) for name in PATH_PARAMETER.findall(route.path)]
    if route.streams and "{id}" in route.path:
        parameters.append(_last_event_id())
    if parameters:
        operation["parameters"] = parameters
    if route.body:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(route.body)}},
        }
    if keys and not route.public:
        operation["security"] = [{"key": []}]
    return operation


def _success(route: DocumentedRoute) -> dict[str, Any]:
    plain = {"type": "object"} if route.content_type == "application/json" else {"type": "string"}
    content: dict[str, Any] = {route.content_type: {"schema": _reference(route.answer) if route.answer else plain}}
    if route.streams:
        content["text/event-stream"] = {"schema": EVENT}
    return {"description": "Done.", "content": content}


def _refusals(route: DocumentedRoute, *, keys: bool) -> dict[str, Any]:
    """Return one response a status, each naming the codes that share it."""
    codes = defaultdict(list)
    for code in (*route.refusals, *(("invalid_api_key",) if keys and not route.public else ())):
        codes[FAULTS[code].status].append(code)
    content = {"application/json": {"schema": _reference(ErrorAnswer)}}
    return {
        str(status): {"description": ", ".join(names), "content": content} for status, names in sorted(codes.items())
    }


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _last_event_id() -> dict[str, Any]:
    return {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "description": "The position of the last token seen: what follows is sent again, then the decode goes on.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,10}$"},
    }
