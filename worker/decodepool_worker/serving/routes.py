"""Every endpoint, in one table: what each is called, takes, answers and may refuse.

The application and `/openapi.json` read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decodepool_web.live_page import page_script, page_style
from decodepool_web.routes import Handler, Route

from decodepool_worker.serving.answers import (
    CancelAnswer,
    CapacityAnswer,
    ClosedAnswer,
    DecodeAnswer,
    DetokenizeAnswer,
    ForkAnswer,
    HealthAnswer,
    ModelAnswer,
    ModelList,
    ReadyAnswer,
    SessionAnswer,
    SessionList,
    TokenizeAnswer,
    TokensAnswer,
)
from decodepool_worker.serving.decode_api import decode_session
from decodepool_worker.serving.fields import Answer, Body
from decodepool_worker.serving.live_answers import LiveAnswer
from decodepool_worker.serving.live_api import live, live_page, live_script, live_style
from decodepool_worker.serving.openai_answers import ChatAnswer, TextAnswer
from decodepool_worker.serving.openai_api import chat_completions, completions
from decodepool_worker.serving.openai_bodies import ChatCompletion, Completion
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

BODY = ("invalid_value", "body_too_large", "request_timeout")


@dataclass(frozen=True)
class DocumentedRoute(Route):
    """One endpoint as the document tells of it. Without an `answer` model it answers `content_type` as it is."""

    answer: type[Answer] | None = None
    body: type[Body] | None = None
    status: int = 200
    streams: bool = False
    content_type: str = "application/json"
    refusals: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What generated clients call it."""
        return getattr(self.handler, "__name__", self.path)

    @property
    def summary(self) -> str:
        """Its handler's docstring."""
        return " ".join((self.handler.__doc__ or "").split())


def get(path: str, handler: Handler, answer: type[Answer] | None, *refusals: str, **more: Any) -> DocumentedRoute:
    """Return a route that reads."""
    return DocumentedRoute("GET", path, handler, answer, refusals=refusals, **more)


def post(
    path: str, handler: Handler, body: type[Body] | None, answer: type[Answer] | None, *refusals: str, **more: Any
) -> DocumentedRoute:
    """Return a route that takes a body, if it has one, and may refuse it."""
    return DocumentedRoute("POST", path, handler, answer, body, refusals=(*(BODY if body else ()), *refusals), **more)


SESSION = ("unknown_session", "session_gone")
SERVING = ("loading", "draining", "engine_failed")
TEXT = ("context_length_exceeded", "template_failed")
DECODE = ("decode_cancelled", "decode_failed")

SESSIONS = "/v1/sessions"
ONE = SESSIONS + "/{id}"

ROUTES: tuple[DocumentedRoute, ...] = (
    post(SESSIONS, create_session, CreateSession, SessionAnswer, *TEXT, "no_free_session", *SERVING, status=201),
    get(SESSIONS, list_sessions, SessionList, *SERVING),
    get(ONE, get_session, SessionAnswer, *SESSION, *SERVING),
    DocumentedRoute("DELETE", ONE, close_session, ClosedAnswer, refusals=(*SESSION, *SERVING)),
    get(ONE + "/tokens", get_tokens, TokensAnswer, *SESSION, *SERVING),
    post(
        ONE + "/append", append_tokens, AppendTokens, SessionAnswer,
        "session_busy", "length_differs", *TEXT, *SESSION, *SERVING,
    ),
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
    get("/live/page.css", page_style, None, content_type="text/css", public=True),
    get("/live/page.js", page_script, None, content_type="text/javascript", public=True),
    get("/live/live.css", live_style, None, content_type="text/css", public=True),
    get("/live/live.js", live_script, None, content_type="text/javascript", public=True),
)  # fmt: skip
"""In the order of the document. What a handler's docstring says is the endpoint's summary."""
