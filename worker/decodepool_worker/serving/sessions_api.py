"""`/v1/sessions`: create, append, decode, fork, cancel, look at, close."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_web.answers import json_answer

from decodepool_worker.engine.rows import Sampling
from decodepool_worker.serving.requests import body_of, sampling_of
from decodepool_worker.serving.service import Served, service_of
from decodepool_worker.serving.session_bodies import AppendTokens, CreateSession, ForkSession
from decodepool_worker.sessions.checks import SEED_LIMIT, require_length
from decodepool_worker.sessions.session import SessionInfo


async def create_session(request: web.Request) -> web.Response:
    """Create a session. Its whole context is reserved, or it is refused; its prompt is evaluated in the background."""
    body = await body_of(request, CreateSession)
    served = service_of(request).served_to_new_work()
    sampling = sampling_of(body, Sampling(), served.vocabulary_size)
    tokens = await _first_tokens(body, served)
    info = await served.worker.create(tokens, context_tokens=body.context_tokens, seed=body.seed, sampling=sampling)
    return json_answer(session_answer(info, served), status=201, headers={"Location": f"/v1/sessions/{info.id}"})


async def append_tokens(request: web.Request) -> web.Response:
    """Put tokens at the end of a session."""
    body = await body_of(request, AppendTokens)
    served = service_of(request).served_to_new_work()
    session_id = request.match_info["id"]
    tokens, length = await _next_tokens(body, session_id, served)
    info = await served.worker.append(session_id, tokens, length)
    return json_answer(session_answer(info, served))


async def fork_session(request: web.Request) -> web.Response:
    """Copy a session; the copies share its pages."""
    body = await body_of(request, ForkSession)
    served = service_of(request).served_to_new_work()
    count = body.n or 1
    _require_places(count, served)
    seeds = None if body.seed is None else [(body.seed + i) % SEED_LIMIT for i in range(count)]
    made = await served.worker.fork(request.match_info["id"], body.at, count, seeds)
    return json_answer({"sessions": [session_answer(info, served) for info in made]}, status=201)


async def cancel_session(request: web.Request) -> web.Response:
    """Stop what a session is doing; it stays."""
    served = service_of(request).served()
    session_id = request.match_info["id"]
    was_busy = await served.worker.cancel(session_id)
    info = await served.worker.info(session_id)
    return json_answer({"cancelled": was_busy, "session": session_answer(info, served)})


async def list_sessions(request: web.Request) -> web.Response:
    """List the sessions, oldest first."""
    served = service_of(request).served()
    infos = await served.worker.infos()
    return json_answer({"object": "list", "data": [session_answer(info, served) for info in infos]})


async def get_session(request: web.Request) -> web.Response:
    """Look at a session."""
    served = service_of(request).served()
    return json_answer(session_answer(await served.worker.info(request.match_info["id"]), served))


async def get_tokens(request: web.Request) -> web.Response:
    """Return a session's tokens: all there is to know about it."""
    session_id = request.match_info["id"]
    tokens = await service_of(request).served().worker.tokens(session_id)
    return json_answer({"id": session_id, "tokens": tokens, "length": len(tokens)})


async def close_session(request: web.Request) -> web.Response:
    """Close a session. A running stream of it gets a last event."""
    session_id = request.match_info["id"]
    await service_of(request).served().worker.close(session_id)
    return json_answer({"id": session_id, "object": "session", "deleted": True})


def session_answer(info: SessionInfo, served: Served) -> dict[str, Any]:
    """Describe a session."""
    now = time.time()
    return {
        "id": info.id,
        "object": "session",
        "state": info.state.value,
        "length": info.length,
        "evaluated": info.evaluated_count,
        "context_tokens": info.context_tokens,
        "seed": info.seed,
        "parent": info.parent,
        "reused_tokens": info.reused_tokens,
        "created": int(now - info.age_seconds),
        "last_used": int(now - info.unused_seconds),
        "system_fingerprint": served.fingerprint,
    }


def _require_places(count: int, served: Served) -> None:
    """Raise `ApiError` if the worker could never hold a session and `count` forks of it."""
    if count >= served.session_capacity:
        message = (
            f"n: {count} forks and their parent are {count + 1} sessions; this worker has {served.session_capacity}"
        )
        raise ApiError("invalid_value", message, "n")


async def _first_tokens(body: CreateSession, served: Served) -> list[int]:
    if body.tokens is not None:
        return body.tokens
    if body.prompt is not None:
        return await served.prompts.of_text(body.prompt, special=bool(body.parse_special), add_bos=None)
    assert body.messages is not None
    return await served.prompts.of_messages(
        body.messages, add_generation_prompt=body.add_generation_prompt is not False
    )


async def _next_tokens(body: AppendTokens, session_id: str, served: Served) -> tuple[list[int], int | None]:
    """Return what to append, and the length of the session that it is for: messages are made for one alone."""
    if body.tokens is not None:
        return body.tokens, body.length
    if body.text is not None:
        return await served.prompts.of_text(body.text, special=bool(body.parse_special), add_bos=False), body.length
    assert body.messages is not None
    before = await served.worker.tokens(session_id)
    require_length(body.length, len(before))
    wanted = body.add_generation_prompt is not False
    tokens = await served.prompts.of_next_messages(body.messages, before, add_generation_prompt=wanted)
    return tokens, len(before)
