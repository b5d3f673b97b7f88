"""Every endpoint, in one table."""

from __future__ import annotations

from decodepool_worker.serving.answers import (
    CancelAnswer,
    CapacityAnswer,
    ClosedAnswer,
    DecodeAnswer,
    DetokenizeAnswer,
    ForkAnswer,
    HealthAnswer,
    LiveAnswer,
    ModelAnswer,
    ModelList,
    ReadyAnswer,
    SessionAnswer,
    SessionList,
    TokenizeAnswer,
    TokensAnswer,
)
from decodepool_worker.serving.decode_api import decode_session
from decodepool_worker.serving.live_api import live, live_page, live_script, live_style
from decodepool_worker.serving.openai_answers import ChatAnswer, TextAnswer
from decodepool_worker.serving.openai_api import chat_completions, completions
from decodepool_worker.serving.openai_bodies import ChatCompletion, Completion
from decodepool_worker.serving.routes import Route, get, post
from decodepool_worker.serving.session_bodies import (
    AppendTokens,
    CreateSession,
    DecodeSession,
    Detokenize,
    ForkSession,
    Tokenize,
)
from decodepool_worker.serving.sessions_api import (
    append_tokens,
    cancel_session,
    close_session,
    create_session,
    fork_session,
    get_session,
    get_tokens,
    list_sessions,
)
from decodepool_worker.serving.text_api import detokenize, tokenize
from decodepool_worker.serving.worker_api import capacity, healthz, metrics, model, models, openapi_json, readyz

SESSION = ("unknown_session", "session_gone")
SERVING = ("loading", "draining", "engine_failed")
TEXT = ("context_length_exceeded", "template_failed")
DECODE = ("decode_cancelled", "decode_failed")

SESSIONS = "/v1/sessions"
ONE = SESSIONS + "/{id}"

ROUTES: tuple[Route, ...] = (
    post(SESSIONS, create_session, CreateSession, SessionAnswer, *TEXT, "no_free_session", *SERVING, status=201),
    get(SESSIONS, list_sessions, SessionList, *SERVING),
    get(ONE, get_session, SessionAnswer, *SESSION, *SERVING),
    Route("DELETE", ONE, close_session, ClosedAnswer, refusals=(*SESSION, *SERVING)),
    get(ONE + "/tokens", get_tokens, TokensAnswer, *SESSION, *SERVING),
    post(ONE + "/append", append_tokens, AppendTokens, SessionAnswer, *TEXT, *SESSION, "session_busy", *SERVING),
    post(
        ONE + "/decode", decode_session, DecodeSession, DecodeAnswer,
        "session_busy", "nothing_to_resume", *DECODE, *SESSION, *SERVING, streams=True,
    ),
    post(ONE + "/fork", fork_session, ForkSession, ForkAnswer, "no_free_session", *SESSION, *SERVING, status=201),
    post(ONE + "/cancel", cancel_session, None, CancelAnswer, *SESSION, *SERVING),
    post(
        "/v1/chat/completions", chat_completions, ChatCompletion, ChatAnswer,
        "model_not_found", "no_free_session", *TEXT, *DECODE, *SERVING, streams=True,
    ),
    post(
        "/v1/completions", completions, Completion, TextAnswer,
        "model_not_found", "no_free_session", *TEXT, *DECODE, *SERVING, streams=True,
    ),
    post("/tokenize", tokenize, Tokenize, TokenizeAnswer, "loading"),
    post("/detokenize", detokenize, Detokenize, DetokenizeAnswer, "loading"),
    get("/v1/models", models, ModelList, "loading"),
    get("/v1/models/{name}", model, ModelAnswer, "model_not_found", "loading"),
    get("/v1/capacity", capacity, CapacityAnswer, "loading"),
    get("/v1/live", live, LiveAnswer, "engine_failed"),
    get("/healthz", healthz, HealthAnswer, "engine_failed", public=True),
    get("/readyz", readyz, ReadyAnswer, *SERVING, public=True),
    get("/metrics", metrics, None, content_type="text/plain", public=True),
    get("/openapi.json", openapi_json, None, content_type="application/json", public=True),
    get("/", live_page, None, content_type="text/html", public=True),
    get("/live/live.css", live_style, None, content_type="text/css", public=True),
    get("/live/live.js", live_script, None, content_type="text/javascript", public=True),
)  # fmt: skip
"""In the order of the document. What a handler's docstring says is the endpoint's summary."""
