"""What handlers read from a request."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_web.deadlines import put_off
from decodepool_web.encodings import BodyReader

from decodepool_worker.engine.rows import Sampling
from decodepool_worker.serving.fields import Body, SamplingFields
from decodepool_worker.serving.service import Phase, service_of
from decodepool_worker.serving.validation import checked_ids, read_body

B = TypeVar("B", bound=Body)

POSITION_DIGITS = 10


BODY_SECONDS = 60.0
"""How long no more of a body may come."""


async def body_of(request: web.Request, model: type[B]) -> B:
    """Read and check a body; large ones are parsed off the event loop."""
    data = await _read(request)
    return await service_of(request).offload.run(len(data), read_body, model, data)


async def _read(request: web.Request) -> bytes:
    """Read a body. One that says it is too large is refused unread, one that stands still is given up."""
    limit, service = request.client_max_size, service_of(request)
    too_large = ApiError("body_too_large", f"the body is larger than {limit} bytes")
    if (request.content_length or 0) > limit:
        raise too_large
    body, data = BodyReader(request), bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS) as deadline:
            with service.reading(deadline):
                while chunk := await body.read():
                    data += chunk
                    if len(data) > limit:
                        raise too_large
                    put_off(deadline, BODY_SECONDS)
    except TimeoutError:
        if service.phase in (Phase.DRAINING, Phase.FAILED):
            raise ApiError("draining", "the worker is ending: it waits for no body") from None
        raise ApiError("request_timeout", f"no more of the body came for {BODY_SECONDS:g} s") from None
    return bytes(data)


def last_event_id(request: web.Request) -> int | None:
    """Return the position after which a stream resumes; None for a new one."""
    text = request.headers.get("Last-Event-ID")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= POSITION_DIGITS):
        raise ApiError("invalid_value", f"Last-Event-ID: {text[:40]!r} is not the position of a token", "Last-Event-ID")
    return int(text)


def sampling_of(fields: SamplingFields, base: Sampling, vocabulary_size: int) -> Sampling:
    """Return `base` with what the body gives put over it."""
    given = fields.model_dump(include=set(SamplingFields.model_fields), exclude_none=True)
    if "logit_bias" in given:
        bias = {int(token): value for token, value in given["logit_bias"].items()}
        checked_ids(bias, vocabulary_size, "logit_bias", keyed=True)
        given["logit_bias"] = tuple(sorted(bias.items()))
    return Sampling(**{**_fields(base), **given})


def _fields(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}
