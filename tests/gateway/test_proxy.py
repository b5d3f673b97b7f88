"""The gateway speaks its workers' API: what a client does with one worker, it does with the pool."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.gateway.processes import PoolProcess, until
from tests.serving.byte_model import lone_tokens
from tests.serving.http_client import events

A_B_C = list(b"A B C")


@pytest.fixture
def client(pool: PoolProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=pool.url + "/v1", api_key="none", max_retries=0)


def test_new_sessions_go_where_most_room_is(pool: PoolProcess) -> None:
    made = [pool.create() for _ in range(8)]
    assert Counter(pool.worker_of(each).name for each in made) == {"a": 4, "b": 4}


def test_a_sessions_id_is_all_that_is_needed_to_use_it(pool: PoolProcess) -> None:
    session = pool.create("A B C", seed=7)
    assert pool.decode(session, max_tokens=6)["tokens"] == lone_tokens(A_B_C, 6)
    assert pool.post(f"/v1/sessions/{session}/append", {"text": "Q"})["length"] == 12
    forks = pool.post(f"/v1/sessions/{session}/fork", {"at": 5, "n": 2}, 201)["sessions"]
    assert {pool.worker_of(fork["id"]).name for fork in forks} == {pool.worker_of(session).name}
    assert pool.get(f"/v1/sessions/{forks[0]['id']}/tokens")["tokens"] == A_B_C
    assert pool.post(f"/v1/sessions/{session}/cancel")["cancelled"] in (True, False)
    assert pool.call("DELETE", f"/v1/sessions/{session}").json["deleted"]
    assert pool.get(f"/v1/sessions/{session}", 410)["error"]["code"] == "session_gone"


def test_a_stream_is_the_workers_own_byte_for_byte(pool: PoolProcess) -> None:
    session = pool.create("A B C", seed=1)
    path, body = f"/v1/sessions/{session}/decode", {"temperature": 0, "stream": True, "max_tokens": 20}
    through = pool.call("POST", path, body)
    direct = pool.worker_of(session).call("POST", path, body, Last_Event_ID="4")
    assert through.text == direct.text
    assert [event["id"] for event in events(through.text)[:-1]] == [str(5 + i) for i in range(20)]
    assert through.headers["Content-Type"] == direct.headers["Content-Type"]
    assert through.headers["Cache-Control"] == "no-store"
    assert through.headers["X-Accel-Buffering"] == "no", "a proxy before the pool is to hold nothing back"


def test_a_stream_comes_as_it_is_drawn(pool: PoolProcess) -> None:
    """Event by event: half of 400 events must be here long before the other half is drawn."""
    session = pool.create()
    with pool.open_stream(session, max_tokens=400) as lines:
        ids = [line for line in (next(lines) for _ in range(300)) if line.startswith("id: ")]
        drawn = pool.get(f"/v1/sessions/{session}")["length"]
    assert drawn - 5 - len(ids) < 40


def test_a_broken_stream_is_resumed_through_the_gateway(pool: PoolProcess) -> None:
    session = pool.create()
    with pool.open_stream(session, max_tokens=40) as lines:
        seen = [next(lines) for _ in range(8)]
    last = [int(line[4:]) for line in seen if line.startswith("id: ")][-1]
    until(lambda: pool.get(f"/v1/sessions/{session}")["state"] == "idle", 5)
    rest = pool.stream(session, last_event_id=last)
    assert [event["data"]["position"] for event in rest[:-1]] == list(range(last + 1, 45))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_openai_client_works_unchanged(client: openai.OpenAI, stream: bool) -> None:
    messages: Any = [{"role": "user", "content": "A B C"}]
    made: Any = client.chat.completions.create(
        model="bytes", messages=messages, temperature=0, max_tokens=8, stream=stream
    )
    texts = [each.choices[0].delta.content or "" for each in made] if stream else [made.choices[0].message.content]
    assert len("".join(texts)) == 8
    assert client.models.list().data[0].id == "bytes"
    with pytest.raises(openai.NotFoundError, match="model"):
        client.completions.create(model="other", prompt="A")


def test_many_streams_at_once_each_get_their_own_tokens(pool: PoolProcess) -> None:
    """Eight sessions decode side by side again and again: nothing of one ends up in another."""
    prompts = [f"{letter} " for letter in "ABCDEFGH"]
    found: dict[str, list[int]] = {}

    def run(prompt: str) -> None:
        session = pool.create(prompt)
        streamed = pool.stream(session, max_tokens=60)
        found[prompt] = [event["data"]["token"] for event in streamed if event["event"] == "token"]

    threads = [threading.Thread(target=run, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {prompt: lone_tokens(list(prompt.encode()), 60) for prompt in prompts}


def test_lists_and_capacity_speak_of_all_workers(pool: PoolProcess) -> None:
    made = [pool.create() for _ in range(3)]
    listed = pool.call("GET", "/v1/sessions")
    assert {session["id"] for session in listed.json["data"]} == set(made)
    assert "X-Decodepool-Unheard" not in listed.headers
    until(lambda: pool.get("/v1/capacity")["sessions"] == {"capacity": 8, "active": 3, "free": 5}, 5)
    told = pool.get("/v1/capacity")
    assert told["planned"]["weight_bytes"] == 2 * 100_000_000
    assert told["system_fingerprint"] == "fp-bytes"
    assert [(each["name"], each["state"]) for each in told["workers"]] == [("a", "ready"), ("b", "ready")]


def test_what_any_worker_can_answer_is_answered(pool: PoolProcess) -> None:
    assert pool.post("/tokenize", {"text": "AB"}) == {"tokens": [65, 66], "count": 2}
    assert pool.post("/detokenize", {"tokens": [65, 66]}) == {"text": "AB"}
    assert pool.get("/v1/models/bytes")["id"] == "bytes"
    assert pool.get("/openapi.json")["openapi"] == "3.1.0"
    head, got = (pool.call(method, "/v1/models") for method in ("HEAD", "GET"))
    assert head.text == ""
    assert head.headers["Content-Length"] == got.headers["Content-Length"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/sessions/s-none", None, 404, "unknown_session"),
        ("GET", "/v1/sessions/s-0123456789-59Opd93QrT3Kz1rvKG_hoA", None, 404, "unknown_session"),
        ("GET", "/nowhere", None, 404, "unknown_route"),
        ("PUT", "/v1/sessions", None, 405, "method_not_allowed"),
        ("POST", "/v1/sessions", {"prompt": "A", "temperature": -1}, 400, "invalid_value"),
        ("POST", "/v1/sessions", b"{", 400, "invalid_json"),
        ("POST", "/v1/sessions", b" " * (8 << 20) + b"{}", 413, "body_too_large"),
        ("POST", "/v1/chat/completions", {"model": "other", "messages": []}, 400, "invalid_value"),
    ],
)
def test_a_refusal_is_the_error_object(
    pool: PoolProcess, method: str, path: str, body: Any, status: int, code: str
) -> None:
    answer = pool.call(method, path, body)
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert answer.headers["x-should-retry"] == "false"


def test_a_refused_request_takes_no_place(pool: PoolProcess) -> None:
    for _ in range(20):
        pool.post("/v1/sessions", {"prompt": "A", "seed": -1}, 400)
    assert [pool.create() for _ in range(8)]


def test_large_bodies_and_answers_pass(pool: PoolProcess) -> None:
    tokens = [65 + i % 26 for i in range(4000)]
    session = pool.post("/v1/sessions", {"tokens": tokens}, 201)["id"]
    assert pool.get(f"/v1/sessions/{session}/tokens")["tokens"] == tokens
    text = "x" * (200 << 10)
    assert pool.post("/tokenize", {"text": text})["count"] == len(text)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_packed_body_is_unpacked_once(pool: PoolProcess, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    answer = pool.call("POST", "/tokenize", pack(b'{"text":"AB"}'), Content_Encoding=encoding)
    assert answer.json == {"tokens": [65, 66], "count": 2}


def test_a_compressed_body_that_is_cut_short_is_refused(pool: PoolProcess) -> None:
    answer = pool.call("POST", "/tokenize", gzip.compress(b'{"text": "AB"}')[:-5], Content_Encoding="gzip")
    assert (answer.status, answer.json["error"]["code"]) == (400, "malformed_request")


def test_a_packed_body_is_as_large_as_it_unpacks_to(pool: PoolProcess) -> None:
    answer = pool.call("POST", "/tokenize", gzip.compress(b" " * (9 << 20)), Content_Encoding="gzip")
    assert (answer.status, answer.json["error"]["code"]) == (413, "body_too_large")


def test_headers_of_one_connection_stay_there(pool: PoolProcess) -> None:
    body = json.dumps({"text": "A"}).encode()
    answer = pool.call(
        "POST", "/tokenize", body, Connection="close, X_Mine", X_Mine="1", TE="trailers", Accept_Encoding="gzip, br"
    )
    assert answer.status == 200
    assert "Content-Encoding" not in answer.headers
