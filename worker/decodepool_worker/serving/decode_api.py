"""`POST /v1/sessions/{id}/decode`: whole or streamed, new or resumed."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web
from decodepool_web.answers import json_answer

from decodepool_worker.engine.rows import Sampling
from decodepool_worker.serving.decoding import fault_of, gathered, joined_text, logprob_of, timed, usage_of
from decodepool_worker.serving.fields import SamplingFields
from decodepool_worker.serving.requests import body_of, last_event_id, sampling_of
from decodepool_worker.serving.service import Served, Service, service_of
from decodepool_worker.serving.session_bodies import DecodeSession
from decodepool_worker.serving.sse import event, event_stream
from decodepool_worker.serving.validation import checked_ids
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.events import EndEvent, TokenEvent
from decodepool_worker.sessions.stream import DecodeStream


async def decode_session(request: web.Request) -> web.StreamResponse:
    """Draw tokens, whole or as events. With Last-Event-ID the last decode goes on after that position."""
    body = await body_of(request, DecodeSession)
    service = service_of(request)
    resume_after = last_event_id(request)
    served = service.served() if resume_after is not None else service.served_to_new_work()
    session_id = request.match_info["id"]
    asked = await _decode_request(body, session_id, served)
    async with await served.worker.decode(session_id, asked, resume_after) as events:
        if body.stream:
            return await _stream_decode(request, events, served)
        return await _whole_decode(service, events, served, with_logprobs=asked.top_logprobs is not None)


async def _decode_request(body: DecodeSession, session_id: str, served: Served) -> DecodeRequest:
    stop_ids = body.stop_token_ids or []
    checked_ids(stop_ids, served.vocabulary_size, "stop_token_ids")
    ends = frozenset() if body.ignore_eos else served.prompts.tokenizer.eos_ids
    return DecodeRequest(
        max_tokens=body.max_tokens,
        sampling=await _sampling(body, session_id, served),
        stop_strings=body.stop_strings(),
        stop_tokens=ends | frozenset(stop_ids),
        top_logprobs=body.wanted_logprobs(),
    )


async def _sampling(body: DecodeSession, session_id: str, served: Served) -> Sampling | None:
    """Return the session's sampling with the body's over it; None, the session's own, where the body says nothing.

    To ask for it would cost the first token a step's time.
    """
    if all(getattr(body, name) is None for name in SamplingFields.model_fields):
        return None
    info = await served.worker.info(session_id)
    return sampling_of(body, info.sampling, served.vocabulary_size)


async def _whole_decode(service: Service, events: DecodeStream, served: Served, *, with_logprobs: bool) -> web.Response:
    tokens, end = await gathered(timed(events, time.perf_counter(), service))
    fault = fault_of(end, service)
    if fault is not None:
        raise fault
    answer = {
        "id": events.session_id,
        "position": tokens[0].position if tokens else end.length,
        "tokens": [each.token for each in tokens],
        "text": joined_text(tokens, end),
        **_ending(end, served),
        "logprobs": [logprob_of(each, served.prompts) for each in tokens] if with_logprobs else None,
    }
    return json_answer(answer)


async def _stream_decode(request: web.Request, events: DecodeStream, served: Served) -> web.StreamResponse:
    service = service_of(request)
    async with event_stream(request, service.metrics) as stream:
        async for each in timed(events, time.perf_counter(), service):
            if isinstance(each, TokenEvent):
                await stream.send(event("token", _token_data(each, served), each.position))
            elif fault := fault_of(each, service):
                await stream.send_last(event("error", fault.body()))
            else:
                await stream.send_last(event("done", {**_ending(each, served), "text": each.text}))
    return stream.response


def _token_data(token: TokenEvent, served: Served) -> dict[str, Any]:
    data: dict[str, Any] = {"position": token.position, "token": token.token, "text": token.text}
    if token.logprob is not None:
        data |= {"logprob": token.logprob, "top": logprob_of(token, served.prompts)["top"]}
    return data


def _ending(end: EndEvent, served: Served) -> dict[str, Any]:
    return {
        "finish_reason": end.finish_reason,
        "stop": end.stop,
        "length": end.length,
        "usage": usage_of(end),
        "system_fingerprint": served.fingerprint,
    }
