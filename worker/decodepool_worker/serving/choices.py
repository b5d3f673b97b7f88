"""The answers of one OpenAI request: each a session that lives as long as it, those of one prompt sharing its pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace

from decodepool_sizing.api_errors import ApiError

from decodepool_worker.engine.rows import Sampling
from decodepool_worker.serving.decoding import Event
from decodepool_worker.serving.service import Served
from decodepool_worker.sessions.checks import SEED_LIMIT
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.errors import SessionError
from decodepool_worker.sessions.events import EndEvent
from decodepool_worker.sessions.session import SessionInfo
from decodepool_worker.sessions.stream import DecodeStream
from decodepool_worker.sessions.worker import Worker


@dataclass(frozen=True)
class Order:
    """What a completion request asks for: `n` answers to each prompt. Answer i of a prompt draws with seed + i."""

    prompts: Sequence[Sequence[int]]
    n: int
    seed: int | None
    sampling: Sampling
    decode: DecodeRequest

    def require_room(self, served: Served) -> None:
        """Raise `ApiError` if the worker could never hold so many answers at once."""
        wanted = self.n * len(self.prompts)
        if wanted > served.session_capacity:
            field = "n" if self.n > 1 else "prompt"
            has = f"this worker has {served.session_capacity}"
            raise ApiError("invalid_value", f"{field}: {wanted} answers at once need {wanted} sessions; {has}", field)


@dataclass(frozen=True)
class Choice:
    """One answer being drawn, since `began`. A twin shares an earlier choice's prompt.

    `first` was read before there were twins, to know that the prompt is evaluated.
    """

    index: int
    prompt_tokens: int
    reused_tokens: int
    began: float
    rest: DecodeStream
    first: Event | None = None
    is_twin: bool = False

    async def events(self) -> AsyncIterator[Event]:
        """Yield the decode's events."""
        if self.first is not None:
            yield self.first
        async for event in self.rest:
            yield event


@asynccontextmanager
async def opened_choices(order: Order, served: Served) -> AsyncIterator[list[Choice]]:
    """Begin every decode of an order; whatever ends the block, its sessions are closed."""
    order.require_room(served)
    async with AsyncExitStack() as stack:
        heads = [await _admitted(order, prompt, served.worker, stack) for prompt in order.prompts]
        choices: list[Choice] = []
        for head in heads:
            choices += await _begun(order, head, served.worker, stack, len(choices))
        yield choices


async def _admitted(order: Order, prompt: Sequence[int], worker: Worker, stack: AsyncExitStack) -> SessionInfo:
    info = await worker.create(prompt, seed=order.seed, sampling=order.sampling)
    stack.push_async_callback(_close, worker, info.id)
    return info


async def _begun(order: Order, head: SessionInfo, worker: Worker, stack: AsyncExitStack, index: int) -> list[Choice]:
    """Decode the first answer; once its prompt is evaluated, fork the others off the prompt's end."""
    choice = await _decoding(order, head, worker, stack, index)
    if order.n == 1:
        return [choice]
    choice = replace(choice, first=await anext(choice.rest))
    if isinstance(choice.first, EndEvent) and choice.first.error is not None:
        return [choice]  # its reader raises what it says
    seeds = [(head.seed + i) % SEED_LIMIT for i in range(1, order.n)]
    twins = await worker.fork(head.id, head.length, len(seeds), seeds)
    for twin in twins:
        stack.push_async_callback(_close, worker, twin.id)
    others = [await _decoding(order, twin, worker, stack, index + i) for i, twin in enumerate(twins, 1)]
    return [choice, *[replace(other, is_twin=True) for other in others]]


async def _decoding(order: Order, info: SessionInfo, worker: Worker, stack: AsyncExitStack, index: int) -> Choice:
    began = time.perf_counter()
    stream = await stack.enter_async_context(await worker.decode(info.id, order.decode))
    return Choice(index, info.length, info.reused_tokens, began, stream)


async def _close(worker: Worker, session_id: str) -> None:
    """Close a session that may have failed by itself. Shielded: a client that leaves now must not leave it behind."""
    with suppress(SessionError):
        await asyncio.shield(worker.close(session_id))
