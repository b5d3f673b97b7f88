from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
from decodepool_sizing.api_errors import FAULTS
from decodepool_sizing.session_ids import tag_of, worker_tag
from decodepool_worker.serving import live_api
from decodepool_worker.serving.application import MAX_BODY_BYTES
from decodepool_worker.serving.routes import ROUTES
from decodepool_worker.serving.service import Phase
from decodepool_worker.sessions.pages import PageUse
from decodepool_worker.sessions.residence import Residence
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.live_server import Live, live_worker

KEY = b"let-me-in"


def test_the_worker_tells_what_it_holds(live: Live) -> None:
    live.create()
    capacity = live.get("/v1/capacity")
    assert capacity["sessions"] == {"capacity": 4, "active": 1, "free": 3}
    assert capacity["planned"]["reserve_bytes"] == 4 * capacity["planned"]["session_bytes"]
    assert capacity["measured"]["resident_bytes"] > 0
    assert capacity["measured"]["cache_bytes"] is None
    assert capacity["worker_tag"] is None


def test_the_worker_tells_the_mark_of_its_sessions() -> None:
    with live_worker(tag=worker_tag("a")) as marked:
        assert marked.get("/v1/capacity")["worker_tag"] == tag_of(marked.create())


def samples(live: Live) -> dict[str, float]:
    text = live.call("GET", "/metrics").text
    return {
        sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_happened(live: Live) -> None:
    live.decode(live.create("A B C"), max_tokens=7)
    live.post("/v1/sessions", {"tokens": []}, 400)
    live.get("/v1/sessions/nope", 404)
    seen = samples(live)
    assert seen["decodepool_decoded_tokens_total{}"] == 7
    assert seen["decodepool_prefilled_tokens_total{}"] == 5
    assert seen['decodepool_sessions{"state": "idle"}'] == 1
    assert seen["decodepool_session_capacity{}"] == 4
    assert seen["decodepool_step_seconds_count{}"] >= 7
    assert seen["decodepool_first_token_seconds_count{}"] == 1
    assert seen['decodepool_refused_total{"reason": "invalid_value"}'] == 1
    route = {"method": "GET", "route": "/v1/sessions/{id}", "status": "404"}
    assert seen["decodepool_requests_total" + json.dumps(route)] == 1
    assert seen["decodepool_ready{}"] == 1


def test_no_series_is_a_time_of_creation(live: Live) -> None:
    live.decode(live.create("A B C"), max_tokens=2)
    assert not any(name.partition("{")[0].endswith("_created") for name in samples(live))


def test_guessed_paths_make_no_series_of_their_own(live: Live) -> None:
    for i in range(5):
        live.get(f"/guess/{i}", 404)
    assert 'decodepool_requests_total{"method": "GET", "route": "unknown", "status": "404"}' in samples(live)
    assert not any("guess" in name for name in samples(live))


def test_while_loading_only_health_is_good() -> None:
    """A16, a slow load is no hang: it is alive, it is not ready, and whoever asks is told why."""
    with live_worker(load=False) as live:
        assert live.get("/healthz") == {"status": "ok", "phase": "loading"}
        for method, path in (
            ("GET", "/readyz"),
            ("POST", "/v1/sessions"),
            ("GET", "/v1/capacity"),
            ("POST", "/tokenize"),
        ):
            body = {"prompt": "A"} if path == "/v1/sessions" else {"text": "A"}
            answer = live.call(method, path, body if method == "POST" else None)
            assert (answer.status, answer.json["error"]["code"]) == (503, "loading")
            assert answer.headers["Retry-After"].isdigit()
        assert live.get("/v1/live") == {"phase": "loading"}
        assert "decodepool_ready 0.0" in live.call("GET", "/metrics").text


def test_while_draining_new_work_is_refused_and_reading_is_not(live: Live) -> None:
    session = live.create()
    live.service.phase = Phase.DRAINING
    for path, body in (("/v1/sessions", {"prompt": "A"}), (f"/v1/sessions/{session}/decode", {"max_tokens": 1})):
        answer = live.call("POST", path, body)
        assert (answer.status, answer.json["error"]["code"]) == (503, "draining")
        assert int(answer.headers["Retry-After"]) >= 1
    assert live.get("/readyz", 503)["error"]["code"] == "draining"
    assert live.get("/healthz")["phase"] == "draining"
    assert live.get(f"/v1/sessions/{session}/tokens")["length"] == 5


def test_a_step_that_never_ends_is_not_alive(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodepool_worker.serving.worker_api.STALLED_SECONDS", 0.2)
    live.gate.hold()
    live.create()
    live.until(lambda: live.call("GET", "/healthz").status == 503)
    live.gate.release()
    live.until(lambda: live.call("GET", "/healthz").status == 200)


@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", "Basic bGV0LW1lLWlu", "Bearer ", "let-me-in", "Bearer let-me-in2"]
)
def test_without_the_key_only_the_public_routes_answer(given: str | None) -> None:
    with live_worker(keys=(b"other", KEY)) as live:
        headers = {} if given is None else {"Authorization": given}
        for route in ROUTES:
            answer = live.call(route.method, route.path.replace("{id}", "x").replace("{name}", "x"), **headers)
            assert (answer.status != 401) == route.public, route.path


def test_with_the_key_everything_answers() -> None:
    with live_worker(keys=(b"other", KEY)) as live:
        answer = live.call("POST", "/v1/sessions", {"prompt": "A"}, Authorization="Bearer let-me-in")
        assert answer.status == 201
        assert live.get("/openapi.json")["components"]["securitySchemes"]


def test_a_body_beyond_the_limit_is_413(live: Live) -> None:
    answer = live.call("POST", "/tokenize", {"text": "a" * MAX_BODY_BYTES})
    assert (answer.status, answer.json["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "unknown_route"),
        ("POST", "/v1/session", 404, "unknown_route"),
        ("PUT", "/v1/sessions", 405, "method_not_allowed"),
        ("GET", "/tokenize", 405, "method_not_allowed"),
        ("GET", "/v1/sessions/%00", 404, "unknown_session"),
        ("DELETE", "/v1/sessions/..%2f..", 404, "unknown_session"),
    ],
)
def test_wrong_doors_answer_in_the_same_words(live: Live, method: str, path: str, status: int, code: str) -> None:
    answer = live.call(method, path)
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert status != 405 or answer.headers["Allow"]


@pytest.mark.parametrize(
    ("headers", "data"),
    [
        ({"Content_Encoding": "gzip"}, b"not gzip"),
        ({"Content_Encoding": "gzip"}, gzip.compress(b'{"text": "cut')[:-4]),
        ({"Content_Encoding": "gzip"}, gzip.compress(b'{"text": "AB"}')[:-5]),
        ({"Content_Encoding": "gzip"}, gzip.compress(b'{"text": "AB"}') + gzip.compress(b"  ")[:-5]),
        ({"Content_Encoding": "deflate"}, zlib.compress(b'{"text": "AB"}')[:-2]),
        ({"Content_Encoding": "gzip"}, gzip.compress(b'{"text": "' + b"a" * MAX_BODY_BYTES)),
    ],
    ids=["gzip", "cut", "no end", "no second end", "no end of deflate", "bomb"],
)
def test_a_body_that_cannot_be_decoded_is_refused(live: Live, headers: dict[str, str], data: bytes) -> None:
    answer = live.call("POST", "/tokenize", data, **headers)
    told = (answer.status, answer.json["error"]["code"])
    assert told == ((413, "body_too_large") if len(data) > 1000 else (400, "malformed_request")), answer.text


def test_a_compressed_body_is_read(live: Live) -> None:
    answer = live.call("POST", "/tokenize", gzip.compress(b'{"text": "AB"}'), Content_Encoding="gzip")
    assert answer.json["tokens"] == [65, 66]


def test_text_goes_to_tokens_and_back(live: Live) -> None:
    text = "Grüße 👩‍👩‍👧 <|im_end|>"
    tokens = live.post("/tokenize", {"text": text})["tokens"]
    assert live.post("/detokenize", {"tokens": tokens})["text"] == text
    assert 257 not in tokens
    assert live.post("/tokenize", {"text": text, "parse_special": True})["tokens"][-1] == 257
    assert live.post("/tokenize", {"text": ""}) == {"tokens": [], "count": 0}
    assert live.post("/detokenize", {"tokens": [255]})["text"] == "\ufffd"


def test_the_live_page_and_its_data(live: Live) -> None:
    styles = [(f"/live/{name}.css", "text/css") for name in ("page", "live")]
    scripts = [(f"/live/{name}.js", "text/javascript") for name in ("page", "live")]
    for path, kind in (("/", "text/html"), *styles, *scripts):
        answer = live.call("GET", path)
        assert answer.headers.get_content_type() == kind
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", ""), (
            "the page needs nothing from elsewhere"
        )
    live.decode(live.create("A B C"), max_tokens=70)
    seen = live.get("/v1/live")
    assert seen["sessions"]["list"][0]["length"] == 75
    assert seen["pages"].count("h") == 2


@pytest.mark.parametrize("shown_pages", [64, 63], ids=["as many as are shown", "one more"])
def test_steps_do_not_wait_for_pages_that_the_live_page_does_not_show(
    live: Live, monkeypatch: pytest.MonkeyPatch, shown_pages: int
) -> None:
    asked: list[Residence] = []
    uses = Residence.page_uses

    def counted(residence: Residence) -> list[PageUse]:
        asked.append(residence)
        return uses(residence)

    monkeypatch.setattr(Residence, "page_uses", counted)
    monkeypatch.setattr(live_api, "SHOWN_PAGES", shown_pages)
    are_shown = shown_pages >= live.engine.page_count
    assert live.get("/v1/live")["pages"] == ("f" * live.engine.page_count if are_shown else None)
    assert len(asked) == are_shown


def test_the_live_pages_memory_adds_up_to_the_plan(live: Live) -> None:
    live.decode(live.create("A B C"), max_tokens=70)
    planned, memory = live.get("/v1/capacity")["planned"], live.get("/v1/live")["memory"]
    total, resident = memory.pop("planned_bytes"), memory.pop("resident_bytes")
    assert total == planned["resident_bytes"] == sum(memory.values())
    assert memory["reserve_used_bytes"] + memory["reserve_free_bytes"] == planned["reserve_bytes"]
    assert memory["cache_used_bytes"] + memory["cache_free_bytes"] == planned["cache_bytes"]
    assert memory["reserve_used_bytes"] > 0
    assert resident == 240_000_000


def test_the_live_page_is_told_no_id_that_could_be_used(live: Live) -> None:
    parent = live.create("A B C")
    fork = live.post(f"/v1/sessions/{parent}/fork", {"n": 1}, 201)["sessions"][0]["id"]
    text = live.call("GET", "/v1/live").text
    assert parent not in text
    assert fork not in text
    shown = json.loads(text)["sessions"]["list"]
    assert [(seen["id"], seen["parent"]) for seen in shown] == [(parent[:8], None), (fork[:8], parent[:8])]
    live.get(f"/v1/sessions/{shown[0]['id']}", 404)
    assert 0 <= shown[1]["age_seconds"] <= shown[0]["age_seconds"] < 60


def test_a_pools_ids_keep_their_tag_on_the_live_page() -> None:
    with live_worker(tag="68a5f91404") as live:
        session = live.create("A B C")
        (shown,) = live.get("/v1/live")["sessions"]["list"]
    assert shown["id"] == session[: len("s-68a5f91404-") + 6]


def test_every_route_is_in_the_document_with_its_refusals(live: Live) -> None:
    document = live.get("/openapi.json")
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert operation["summary"]
        statuses = {str(FAULTS[code].status) for code in route.refusals} | {str(route.status)}
        assert statuses == set(operation["responses"])


ANSWERS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/sessions", {"prompt": "A"}),
    ("GET", "/v1/sessions", None),
    ("GET", "/v1/sessions/{id}", None),
    ("GET", "/v1/sessions/{id}/tokens", None),
    ("POST", "/v1/sessions/{id}/append", {"text": "B"}),
    ("POST", "/v1/sessions/{id}/decode", {"max_tokens": 2, "top_logprobs": 2}),
    ("POST", "/v1/sessions/{id}/fork", {}),
    ("POST", "/v1/sessions/{id}/cancel", {}),
    ("DELETE", "/v1/sessions/{id}", None),
    ("POST", "/v1/chat/completions", {"model": "bytes", "messages": [{"role": "user", "content": "A"}], "max_tokens": 3,
                                      "logprobs": True, "top_logprobs": 2}),
    ("POST", "/v1/completions", {"model": "bytes", "prompt": "A", "max_tokens": 3, "logprobs": 2}),
    ("POST", "/tokenize", {"text": "A"}),
    ("POST", "/detokenize", {"tokens": [65]}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/{name}", None),
    ("GET", "/v1/capacity", None),
    ("GET", "/v1/live", None),
    ("GET", "/healthz", None),
    ("GET", "/readyz", None),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body"), ANSWERS, ids=[f"{method} {path}" for method, path, _ in ANSWERS])
def test_answers_are_what_the_document_says(live: Live, method: str, path: str, body: Any) -> None:
    route = next(each for each in ROUTES if (each.method, each.path) == (method, path))
    assert route.answer is not None
    answer = live.call(method, path.replace("{id}", live.create("A B C")).replace("{name}", "bytes"), body)
    assert answer.status == route.status, answer.text
    route.answer.model_validate_json(answer.text, strict=True)


def test_every_json_answer_is_held_to_its_model() -> None:
    tested = {(method, path) for method, path, _ in ANSWERS}
    assert tested == {(route.method, route.path) for route in ROUTES if route.answer is not None}
