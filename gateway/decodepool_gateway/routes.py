"""Every endpoint, in one table: the workers' own, and who answers each."""

from __future__ import annotations

from decodepool_web.live_page import page_script, page_style
from decodepool_web.routes import Route

from decodepool_gateway.kept_sessions import use_session
from decodepool_gateway.live_api import live, live_page, live_script, live_style
from decodepool_gateway.new_sessions import complete, create_session
from decodepool_gateway.whole_pool import ask_any, capacity, healthz, list_sessions, metrics, readyz

SESSIONS = "/v1/sessions"
ONE = SESSIONS + "/{id}"

ROUTES: tuple[Route, ...] = (
    Route("POST", SESSIONS, create_session),
    Route("POST", "/v1/chat/completions", complete),
    Route("POST", "/v1/completions", complete),
    Route("GET", SESSIONS, list_sessions),
    Route("GET", ONE, use_session),
    Route("DELETE", ONE, use_session),
    Route("GET", ONE + "/tokens", use_session),
    Route("POST", ONE + "/append", use_session),
    Route("POST", ONE + "/decode", use_session),
    Route("POST", ONE + "/fork", use_session),
    Route("POST", ONE + "/cancel", use_session),
    Route("POST", "/tokenize", ask_any),
    Route("POST", "/detokenize", ask_any),
    Route("GET", "/v1/models", ask_any),
    Route("GET", "/v1/models/{name}", ask_any),
    Route("GET", "/v1/capacity", capacity),
    Route("GET", "/v1/live", live),
    Route("GET", "/healthz", healthz, public=True),
    Route("GET", "/readyz", readyz, public=True),
    Route("GET", "/metrics", metrics, public=True),
    Route("GET", "/openapi.json", ask_any, public=True),
    Route("GET", "/", live_page, public=True),
    Route("GET", "/live/page.css", page_style, public=True),
    Route("GET", "/live/page.js", page_script, public=True),
    Route("GET", "/live/pool.css", live_style, public=True),
    Route("GET", "/live/pool.js", live_script, public=True),
)
