"""What one client may hold, and for how long: bodies, buffers, connections, silence."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from decodepool_gateway import bodies, relay
from decodepool_gateway.connections import DESCRIPTORS_EACH, MOST_CONNECTIONS
from decodepool_sizing.session_ids import worker_tag
from decodepool_web import connections
from decodepool_web.connections import connection_limit

from tests.gateway.live_gateway import LiveGateway, live_gateway
from tests.gateway.processes import until
from tests.serving.http_client import events
from tests.serving.live_server import Live, live_worker


@pytest.fixture
def worker() -> Iterator[Live]:
    with live_worker(context_tokens=4096, tag=worker_tag("a")) as running:
        yield running


@pytest.fixture
def gateway(worker: Live) -> Iterator[LiveGateway]:
    with live_gateway([("a", worker.url)]) as running:
        yield running


def decode(gateway: LiveGateway, session: str, receive_bytes: int) -> socket.socket:
    """Begin to stream, with a small receive buffer, and read nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    raw.connect(("127.0.0.1", gateway.port))
    data = json.dumps({"stream": True, "top_logprobs": 20, "ignore_eos": True}).encode()
    head = f"POST /v1/sessions/{session}/decode HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    raw.sendall(head.encode() + data)
    return raw


def test_a_reader_that_stalls_is_dropped_and_frees_its_row(
    worker: Live, gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "QUIET_SECONDS", 0.5)
    raw = decode(gateway, worker.post("/v1/sessions", {"tokens": [65]}, 201)["id"], 4096)
    until(lambda: worker.get("/v1/sessions")["data"][0]["length"] > 1, 5)
    until(lambda: worker.busy() == 0, 20)
    assert worker.get("/v1/sessions")["data"][0]["length"] < 4096
    assert gateway.gateway.metrics.streams._value.get() == 0
    raw.close()


def test_a_worker_that_falls_silent_ends_the_stream_with_an_error(
    worker: Live, gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "QUIET_SECONDS", 0.5)
    worker.gate.seconds = 0.02
    session = worker.create("A")
    threading.Timer(0.3, worker.gate.hold).start()
    answer = gateway.call("POST", f"/v1/sessions/{session}/decode", {"stream": True, "max_tokens": 1000})
    worker.gate.release()
    last = events(answer.text)[-1]
    assert (last["event"], last["data"]["error"]["code"]) == ("error", "worker_lost")
    assert "0.5 s" in last["data"]["error"]["message"]


def test_a_body_that_stands_still_is_given_up(gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
        raw.sendall(b'POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"prompt"')
        raw.settimeout(5)
        assert b"408" in raw.recv(4096).split(b"\r\n")[0]


def test_all_bodies_together_have_a_limit(gateway: LiveGateway) -> None:
    gateway.gateway.bodies._max_held_bytes = 1000
    answer = gateway.call("POST", "/v1/sessions", {"tokens": [65] * 1000})
    assert (answer.status, answer.json["error"]["code"]) == (503, "overloaded")
    assert answer.headers["Retry-After"] == "1"
    for _ in range(4):  # what was refused is not held, nor what was answered
        assert gateway.call("POST", "/v1/sessions", {"tokens": [65] * 100}).status == 201


def test_a_chunked_body_past_the_limit_is_refused_while_it_comes(gateway: LiveGateway) -> None:
    gateway.gateway.bodies.max_body_bytes = 1000
    with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
        raw.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        raw.sendall(b"800\r\n" + b" " * 0x800)
        raw.settimeout(5)
        assert b"413" in raw.recv(4096).split(b"\r\n")[0]


def test_what_is_no_http_is_refused_with_the_error_object(gateway: LiveGateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
        raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        raw.settimeout(5)
        answer = raw.recv(4096)
    assert b"400" in answer.split(b"\r\n")[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "malformed_request"


def test_whoever_connects_and_says_nothing_is_dropped(gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
        raw.settimeout(5)
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHos")
        began = time.monotonic()
        assert raw.recv(10) == b""
        assert time.monotonic() - began < 2


def test_an_expectation_is_met_or_refused(gateway: LiveGateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port)) as raw:
        raw.settimeout(5)
        raw.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 12\r\n\r\n")
        assert raw.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b'{"text":"A"}')
        assert raw.recv(4096).startswith(b"HTTP/1.1 200")
    refused = gateway.call("POST", "/tokenize", {"text": "A"}, Expect="miracles")
    assert (refused.status, refused.json["error"]["code"]) == (417, "expectation_failed")


def test_descriptors_limit_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(connections, "_open_descriptors", lambda: 60)
    assert connection_limit(MOST_CONNECTIONS, DESCRIPTORS_EACH) == (1024 - 60 - 64) // 2


def test_where_too_many_wait_the_oldest_makes_room(worker: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodepool_gateway.server.connection_limit", lambda *_: 16)
    with live_gateway([("a", worker.url)]) as gateway:
        held = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(40)]
        assert gateway.get("/healthz")["status"] == "ok"
        held[0].settimeout(5)
        assert held[0].recv(1) == b""
        for each in held:
            each.close()
