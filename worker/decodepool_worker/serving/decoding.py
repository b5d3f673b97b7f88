"""A decode's events on their way out: timed, gathered, told apart from faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from decodepool_sizing.api_errors import ApiError

from decodepool_worker.serving.prompts import Prompts
from decodepool_worker.serving.service import Phase, Service
from decodepool_worker.sessions.events import EndEvent, TokenEvent

Event = TokenEvent | EndEvent
T = TypeVar("T")


async def timed(events: AsyncIterator[Event], began: float, service: Service) -> AsyncIterator[Event]:
    """Pass events on, and note how long after `began` the first token came."""
    is_first = True
    async for event in events:
        if is_first and isinstance(event, TokenEvent):
            service.metrics.first_token.observe(time.perf_counter() - began)
            is_first = False
        yield event


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines side by side; when one fails, end the others and raise what it raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except ExceptionGroup as faults:
        raise faults.exceptions[0] from None
    return [task.result() for task in tasks]


async def gathered(events: AsyncIterator[Event]) -> tuple[list[TokenEvent], EndEvent]:
    """Read a decode to its end."""
    tokens: list[TokenEvent] = []
    async for event in events:
        if isinstance(event, EndEvent):
            return tokens, event
        tokens.append(event)
    raise AssertionError("a decode ended without an end")


def fault_of(end: EndEvent, service: Service) -> ApiError | None:
    """Return the refusal that a decode's end amounts to: None if it ended as asked."""
    if end.error is None:
        return None
    if service.fault:
        return ApiError("engine_failed", end.error)
    if service.phase is Phase.DRAINING and end.finish_reason == "error":
        return ApiError("draining", end.error)
    return ApiError("decode_failed" if end.finish_reason == "error" else "decode_cancelled", end.error)


def joined_text(tokens: Sequence[TokenEvent], end: EndEvent) -> str:
    """Return the decode's whole text."""
    return "".join([event.text for event in tokens]) + end.text


def usage_of(end: EndEvent) -> dict[str, int]:
    """Return the tokens before the decode, drawn, and together."""
    return {"prompt_tokens": end.length - end.generated, "completion_tokens": end.generated, "total_tokens": end.length}


def logprob_of(event: TokenEvent, prompts: Prompts) -> dict[str, Any]:
    """Return a token's log-probability and those of the best, in the session API's words."""
    best = [{"token": token, "text": prompts.token_text(token), "logprob": logprob} for token, logprob in event.top]
    return {"token": event.token, "text": prompts.token_text(event.token), "logprob": event.logprob, "top": best}
