"""A28: a client that leaves frees its row within a second, whatever it waited for. A12: health answers meanwhile."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from decodepool_worker.serving import sse

from tests.serving.byte_model import lone_tokens
from tests.serving.http_client import Client
from tests.serving.live_server import Live, live_worker


@pytest.fixture
def slow() -> Iterator[Live]:
    with live_worker(step_seconds=0.02, context_tokens=4096) as worker:
        yield worker


def send(live: Client, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request and leave its answer unread."""
    data = json.dumps(body).encode()
    raw = socket.create_connection(("127.0.0.1", live.port))
    raw.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return raw


def reset(raw: socket.socket) -> None:
    """Leave with RST."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


LEAVE: dict[str, Callable[[socket.socket], None]] = {"fin": socket.socket.close, "rst": reset}


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_frees_its_row(slow: Live, stream: bool, leave: Callable[[socket.socket], None]) -> None:
    session = slow.create("A B C")
    raw = send(slow, f"/v1/sessions/{session}/decode", {"temperature": 0, "stream": stream})
    slow.until(lambda: slow.busy() == 1)
    leave(raw)
    assert slow.until(lambda: slow.busy() == 0) < 3
    tokens = slow.get(f"/v1/sessions/{session}/tokens")["tokens"]
    assert tokens == [*b"A B C", *lone_tokens(list(b"A B C"), len(tokens) - 5)]
    assert slow.decode(session, max_tokens=4)["tokens"] == lone_tokens(tokens, 4)


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_during_a_long_prompt_is_noticed(
    slow: Live, stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    session = slow.post("/v1/sessions", {"tokens": [65] * 4000}, 201)["id"]
    slow.gate.seconds = 0.3  # 16 steps of it: five seconds of prompt
    raw = send(slow, f"/v1/sessions/{session}/decode", {"stream": stream})
    slow.until(lambda: slow.busy() == 1)
    leave(raw)
    assert slow.until(lambda: slow.busy() == 0) < 3


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("n", [1, 3])
def test_an_openai_client_that_leaves_takes_its_sessions_along(slow: Live, n: int, stream: bool) -> None:
    body = {"model": "bytes", "prompt": "A B C", "max_tokens": 4000, "temperature": 0, "n": n, "stream": stream}
    raw = send(slow, "/v1/completions", body)
    slow.until(lambda: slow.busy() == n)
    raw.close()
    assert slow.until(lambda: slow.get("/v1/capacity")["sessions"]["active"] == 0) < 3


def test_leaving_one_stream_leaves_the_others_alone(slow: Live) -> None:
    neighbour, answers = slow.create("A B C"), []
    running = threading.Thread(target=lambda: answers.append(slow.decode(neighbour, max_tokens=60)))
    running.start()
    for _ in range(6):
        session = slow.create("Q")
        raw = send(slow, f"/v1/sessions/{session}/decode", {"stream": True})
        slow.until(lambda: slow.busy() == 2)
        reset(raw)
        slow.call("DELETE", f"/v1/sessions/{session}")
    running.join()
    assert answers[0]["tokens"] == lone_tokens(list(b"A B C"), 60)


def test_a_reader_that_stalls_is_dropped_and_holds_nobody(slow: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "STALL_SECONDS", 0.5)
    slow.gate.seconds = 0.0
    session = slow.post("/v1/sessions", {"tokens": [65]}, 201)["id"]
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", slow.port))
    data = json.dumps({"stream": True, "top_logprobs": 20, "ignore_eos": True}).encode()
    raw.sendall(
        f"POST /v1/sessions/{session}/decode HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    )
    slow.until(lambda: slow.busy() == 1)
    assert slow.decode(slow.create("A B C"), max_tokens=20)["tokens"] == lone_tokens(list(b"A B C"), 20)
    slow.until(lambda: slow.service.metrics.streams._value.get() == 0, 20)
    raw.close()


def test_a_quiet_stream_is_kept_alive(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.05)
    session = live.create("A B C")
    live.until(lambda: live.get(f"/v1/sessions/{session}")["state"] == "idle")
    threading.Timer(0.3, live.gate.release).start()
    live.gate.hold()
    with live.open_stream(session, max_tokens=1) as lines:
        seen = [next(lines) for _ in range(4)]
    assert seen.count(": keep-alive") >= 2


def test_health_answers_at_once_while_everything_is_busy(slow: Live) -> None:
    def load() -> None:
        session = slow.create("A")
        slow.decode(session, max_tokens=30, top_logprobs=20)

    work = [threading.Thread(target=load) for _ in range(4)]
    work += [
        threading.Thread(target=slow.post, args=("/tokenize", {"text": text}))
        for text in ("a" * 200_000, "é" * 100_000)
    ]
    work.append(threading.Thread(target=slow.call, args=("POST", "/v1/sessions", b'{"tokens":[1' + b",[]" * 500_000)))
    for thread in work:
        thread.start()
    slowest = 0.0
    while any(thread.is_alive() for thread in work):
        began = time.monotonic()
        slow.get("/healthz")
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.02)
    assert slowest < 1
