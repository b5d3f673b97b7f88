"""`/v1/chat/completions` and `/v1/completions`: sessions that live for one request, in OpenAI's words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_web.answers import json_answer

from decodepool_worker.engine.rows import Sampling
from decodepool_worker.serving.choices import Choice, Order, opened_choices
from decodepool_worker.serving.decoding import fault_of, gathered, timed, together
from decodepool_worker.serving.openai_bodies import ChatCompletion, Completion, OpenAIFields
from decodepool_worker.serving.openai_words import ChatWords, Drawn, Envelope, TextWords, Words, openai_usage
from decodepool_worker.serving.requests import body_of, sampling_of
from decodepool_worker.serving.service import Served, Service, service_of
from decodepool_worker.serving.sse import DONE, EventStream, data_line, event_stream
from decodepool_worker.serving.validation import checked_ids
from decodepool_worker.sessions.checks import SEED_LIMIT
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.events import EndEvent, TokenEvent


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """OpenAI's chat completions."""
    body = await body_of(request, ChatCompletion)
    served = service_of(request).served_to_new_work()
    served.require_model(body.model)
    prompt = await served.prompts.of_messages(body.messages, add_generation_prompt=True)
    order = _order(body, [prompt], body.limit(), body.wanted_logprobs(), served)
    words = ChatWords(served.prompts, order.decode.top_logprobs is not None, order.decode.stop_tokens)
    return await _answered(request, body, order, words, Envelope("chatcmpl", served.name, served.fingerprint))


async def completions(request: web.Request) -> web.StreamResponse:
    """OpenAI's text completions."""
    body = await body_of(request, Completion)
    served = service_of(request).served_to_new_work()
    served.require_model(body.model)
    prompts = [await _prompt_tokens(prompt, body.path(index), served) for index, prompt in enumerate(body.prompts())]
    order = _order(body, prompts, body.limit(), body.logprobs, served)
    words = TextWords(served.prompts, order.decode.top_logprobs is not None, order.decode.stop_tokens)
    return await _answered(request, body, order, words, Envelope("cmpl", served.name, served.fingerprint))


async def _prompt_tokens(prompt: str | list[int], path: str, served: Served) -> list[int]:
    if not isinstance(prompt, str):
        checked_ids(prompt, served.vocabulary_size, path)
        return prompt
    tokens = await served.prompts.of_text(prompt, special=False, add_bos=None)
    if not tokens:
        raise ApiError("invalid_value", f"{path}: there is nothing to evaluate, and this model has no BOS token", path)
    return tokens


def _order(
    body: OpenAIFields, prompts: Sequence[Sequence[int]], limit: int | None, top_logprobs: int | None, served: Served
) -> Order:
    stop_ids = body.stop_token_ids or []
    checked_ids(stop_ids, served.vocabulary_size, "stop_token_ids")
    ends = frozenset() if body.ignore_eos else served.prompts.tokenizer.eos_ids
    decode = DecodeRequest(
        max_tokens=limit,
        stop_strings=body.stop_strings(),
        stop_tokens=ends | frozenset(stop_ids),
        top_logprobs=top_logprobs,
    )
    seed = None if body.seed is None else body.seed % SEED_LIMIT
    return Order(prompts, body.n or 1, seed, sampling_of(body, Sampling(), served.vocabulary_size), decode)


async def _answered(
    request: web.Request, body: OpenAIFields, order: Order, words: Words, envelope: Envelope
) -> web.StreamResponse:
    service = service_of(request)
    async with AsyncExitStack() as opened:
        choices = await opened.enter_async_context(opened_choices(order, service.served()))
        if not body.stream:
            return await _whole(choices, envelope, words, service)
        async with event_stream(request, service.metrics) as stream:
            await _Chunks(stream, envelope, words, service, include_usage=body.include_usage()).write(choices)
            await opened.aclose()  # the places are free before the client hears of the end
            await stream.send_last(DONE)
        return stream.response


async def _whole(choices: Sequence[Choice], envelope: Envelope, words: Words, service: Service) -> web.Response:
    drawn = await together(_drawn(choice, service) for choice in choices)
    usage = _usage(choices, sum(answer.end.generated for answer in drawn))
    return json_answer(envelope.around(words.object, [words.whole(answer) for answer in drawn], usage=usage))


async def _drawn(choice: Choice, service: Service) -> Drawn:
    tokens, end = await gathered(timed(choice.events(), choice.began, service))
    fault = fault_of(end, service)
    if fault is not None:
        raise fault
    return Drawn(choice.index, tokens, end)


def _usage(choices: Sequence[Choice], completion_tokens: int) -> dict[str, Any]:
    """Count each prompt once, however many answers it has."""
    heads = [choice for choice in choices if not choice.is_twin]
    prompt = sum(choice.prompt_tokens for choice in heads)
    cached = sum(choice.reused_tokens for choice in heads)
    return openai_usage(prompt, cached, completion_tokens)


@dataclass
class _Chunks:
    """Writes the chunks of one stream: answers as they come, each by its own task; a block is never split."""

    stream: EventStream
    envelope: Envelope
    words: Words
    service: Service
    include_usage: bool = field(kw_only=True)

    async def write(self, choices: Sequence[Choice]) -> None:
        """Write every answer and the usage; a fault, if there is one, last."""
        try:
            generated = await together(self._write_choice(choice) for choice in choices)
        except ApiError as fault:
            await self.stream.send(data_line(fault.body()))
        else:
            if self.include_usage:
                usage = _usage(choices, sum(generated))
                await self.stream.send(data_line(self.envelope.around(self.words.chunk_object, [], usage=usage)))

    async def _write_choice(self, choice: Choice) -> int:
        """Write one answer; return the count of its tokens."""
        await self._send(self.words.opening(choice.index))
        async for event in timed(choice.events(), choice.began, self.service):
            if isinstance(event, TokenEvent):
                await self._send(self._piece(choice.index, event))
                continue
            await self._close_choice(choice.index, event)
            return event.generated
        raise AssertionError("a decode ended without an end")

    def _piece(self, index: int, event: TokenEvent) -> dict[str, Any] | None:
        """Return a token's chunk; none where it shows neither text nor log-probability."""
        piece = self.words.piece(index, event.text, [event])
        return piece if event.text or piece["logprobs"] else None

    async def _close_choice(self, index: int, end: EndEvent) -> None:
        fault = fault_of(end, self.service)
        if fault is not None:
            raise fault
        await self._send(self.words.closing(index, end.text, end.finish_reason))

    async def _send(self, choice: dict[str, Any] | None) -> None:
        if choice is not None:
            more = {"usage": None} if self.include_usage else {}
            await self.stream.send(data_line(self.envelope.around(self.words.chunk_object, [choice], **more)))
