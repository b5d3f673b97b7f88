"""A28 through the gateway: a client that leaves frees its row within a second, whatever it waited for."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.processes import PoolProcess, until
from tests.serving.byte_model import lone_tokens


def send(pool: PoolProcess, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request and leave its answer unread."""
    data = json.dumps(body).encode()
    raw = socket.create_connection(("127.0.0.1", pool.port))
    raw.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return raw


def reset(raw: socket.socket) -> None:
    """Leave with RST."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


LEAVE: dict[str, Callable[[socket.socket], None]] = {"fin": socket.socket.close, "rst": reset}


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_frees_its_row(
    pool: PoolProcess, stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    session = pool.create("A B C")
    raw = send(pool, f"/v1/sessions/{session}/decode", {"temperature": 0, "stream": stream})
    until(lambda: pool.busy() == 1, 5)
    leave(raw)
    assert until(lambda: pool.busy() == 0, 5) < 3
    tokens = pool.get(f"/v1/sessions/{session}/tokens")["tokens"]
    assert len(tokens) < 4096
    assert pool.decode(session, max_tokens=4)["tokens"] == lone_tokens(tokens, 4)


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_an_openai_client_that_leaves_takes_its_session_along(
    pool: PoolProcess, stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    body = {"model": "bytes", "prompt": "A B C", "max_tokens": 4000, "temperature": 0, "stream": stream}
    raw = send(pool, "/v1/completions", body)
    until(lambda: pool.busy() == 1, 5)
    leave(raw)
    assert until(lambda: not pool.get("/v1/sessions")["data"], 5) < 3


def test_a_client_that_leaves_the_queue_makes_way(pool: PoolProcess) -> None:
    for _ in range(8):
        pool.create()
    body = {"model": "bytes", "prompt": "A", "max_tokens": 1}
    waiting = [send(pool, "/v1/completions", body) for _ in range(3)]
    until(lambda: pool.metric("decodepool_pool_queued") == 3, 5)
    reset(waiting[0])
    waiting[1].close()
    assert until(lambda: pool.metric("decodepool_pool_queued") == 1, 5) < 3
    pool.call("DELETE", f"/v1/sessions/{pool.get('/v1/sessions')['data'][0]['id']}")
    waiting[2].settimeout(10)
    assert waiting[2].recv(65536).startswith(b"HTTP/1.1 200")
    waiting[2].close()


def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(pool: PoolProcess) -> None:
    raw = socket.create_connection(("127.0.0.1", pool.port))
    raw.sendall(b'POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"prompt"')
    left = pool.metric("decodepool_gateway_disconnects_total")
    raw.close()
    until(lambda: pool.metric("decodepool_gateway_disconnects_total") == left + 1, 5)
    assert pool.get("/v1/sessions")["data"] == []


def test_a_reader_that_stops_holds_nobody_up(pool: PoolProcess) -> None:
    """Its own stream waits in the buffers; the others go on as if it were not there."""
    slow, quick = pool.create("Q", seed=1), pool.create("A B C")
    raw = send(pool, f"/v1/sessions/{slow}/decode", {"stream": True, "top_logprobs": 20, "ignore_eos": True})
    until(lambda: pool.busy() == 1, 5)
    streamed = pool.stream(quick, max_tokens=200)
    assert [event["data"]["token"] for event in streamed[:-1]] == lone_tokens(list(b"A B C"), 200)
    reset(raw)
    assert until(lambda: pool.busy() == 0, 5) < 3
