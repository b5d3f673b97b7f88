"""Who only waits costs nobody anything: deadlines, a limit, and the error object below the router too."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest
from decodepool_worker.serving import connections, requests
from decodepool_worker.serving.application import MAX_BODY_BYTES

from tests.serving.live_server import Live, live_worker

LIMIT = 8
HALF_HEADER = b"GET /hea"
HALF_BODY = b'POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"te'


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A worker of little patience, with few places for connections."""
    monkeypatch.setattr("decodepool_web.connections.HEADER_SECONDS", 0.3)
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(connections, "connection_limit", lambda _: LIMIT)
    with live_worker() as worker:
        yield worker


def sent(live: Live, data: bytes) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", live.port), timeout=5)
    raw.sendall(data)
    return raw


def is_closed(raw: socket.socket) -> bool:
    """Whether the other side has closed: quietly, or, where it had not read all, by a reset."""
    try:
        return raw.recv(1) == b""
    except ConnectionResetError:
        return True


def answer(raw: socket.socket) -> tuple[int, bytes]:
    """Read one whole answer: status and body."""
    with raw, raw.makefile("rb") as lines:
        status = int(lines.readline().split()[1])
        headers = dict(line.decode().lower().strip().split(": ", 1) for line in iter(lines.readline, b"\r\n"))
        return status, lines.read(int(headers["content-length"]))


def error(raw: socket.socket) -> tuple[int, str]:
    status, body = answer(raw)
    return status, json.loads(body)["error"]["code"]


@pytest.mark.parametrize("data", [b"", HALF_HEADER], ids=["nothing", "half a header"])
def test_a_connection_that_asks_for_nothing_is_closed(hasty: Live, data: bytes) -> None:
    with sent(hasty, data) as raw:
        assert is_closed(raw)


def test_drops_of_a_header_win_no_time(hasty: Live) -> None:
    began = time.monotonic()
    with sent(hasty, b"GET / HTTP/1.1\r\nHost: x\r\n") as raw, suppress(OSError):
        while time.monotonic() - began < 3:
            raw.sendall(b"A: b\r\n")  # raises once the other side has closed
            time.sleep(0.05)
    assert time.monotonic() - began < 2


def test_a_kept_connection_outlives_the_first_deadline(hasty: Live) -> None:
    ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with sent(hasty, ask) as raw:
        assert raw.recv(4096).startswith(b"HTTP/1.1 200")
        time.sleep(0.5)
        raw.sendall(ask)
        assert raw.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_body_that_stands_still_is_408(hasty: Live) -> None:
    assert error(sent(hasty, HALF_BODY)) == (408, "request_timeout")


def test_a_slow_body_that_comes_on_is_read(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        requests, "BODY_SECONDS", 3.0
    )  # fifteen pauses: a machine that stands still for two seconds passes
    data = b'{"text": "A B C"}'
    raw = sent(live, b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data))
    for byte in data:
        time.sleep(0.2)
        raw.sendall(bytes([byte]))
    status, body = answer(raw)
    assert (status, json.loads(body)["count"]) == (200, 5)


def test_a_body_that_says_it_is_too_large_is_413_unread(live: Live) -> None:
    head = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1)
    assert error(sent(live, head)) == (413, "body_too_large")


def test_a_probe_gets_through_a_crowd_that_only_waits(hasty: Live, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as crowd:
        first, *_ = [crowd.enter_context(closing(sent(hasty, HALF_HEADER))) for _ in range(3 * LIMIT)]
        assert hasty.call("GET", "/healthz").status == 200
        assert is_closed(first)
    assert sum("makes room" in record.message for record in caplog.records) == 1


def test_the_crowd_takes_no_place_of_those_that_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "connection_limit", lambda _: 1)
    with ExitStack() as stack:
        worker = stack.enter_context(live_worker(step_seconds=0.01))
        lines = stack.enter_context(worker.open_stream(worker.create("A"), max_tokens=60))
        for _ in range(5):
            stack.enter_context(closing(sent(worker, HALF_HEADER)))
        assert worker.call("GET", "/healthz").status == 200
        assert "event: done" in list(lines)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"FROB /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["bytes in a path", "long header", "long path", "method", "no host", "TLS", "length"],
)
def test_what_is_no_request_is_refused_with_the_error_object(
    live: Live, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert error(sent(live, data)) == (400, "malformed_request")
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"Content-Encoding: br", (400, "malformed_request")),
        (b"Expect: bogus", (417, "expectation_failed")),
        (b"Transfer-Encoding: gzip, chunked", (400, "malformed_request")),
    ],
    ids=["encoding", "expectation", "transfer"],
)
def test_what_a_request_may_not_ask_for_is_refused_in_json(
    live: Live, header: bytes, expected: tuple[int, str]
) -> None:
    length = b"" if b"Transfer" in header else b"Content-Length: 2\r\n"
    raw = sent(live, b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\n%s\r\n%s\r\n{}" % (header, length))
    assert error(raw) == expected


CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("begun", [b"", b"1\r\n{\r\n"], ids=["first", "second"])
@pytest.mark.parametrize("chunk", [b"ZZ\r\n", b"3\r\n{}\r\n\r\n"], ids=["size", "end"])
@pytest.mark.parametrize("seconds", [0.0, 0.1])  # behind the header, and while the body's reader waits
def test_a_chunk_that_is_none_is_refused_once(
    live: Live, begun: bytes, chunk: bytes, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    with sent(live, CHUNKED + begun) as raw:
        time.sleep(seconds)
        raw.sendall(chunk)
        told = all_of(raw)
    assert told.count(b"HTTP/1.") == 1, told
    assert b" 400 " in told.partition(b"\r\n")[0]
    assert told.startswith(b"HTTP/1.0") or b"connection: close\r\n" in told.lower()
    assert b'"code":"malformed_request"' in told
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_chunk_that_is_none_is_refused_behind_an_earlier_request(live: Live) -> None:
    session, ask = live.create("A B C"), b'{"max_tokens": 40}'
    head = b"POST /v1/sessions/%s/decode HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    live.gate.seconds = 0.02
    with sent(live, head % (session.encode(), len(ask)) + ask + CHUNKED) as raw:
        live.until(lambda: live.busy() == 1)
        raw.sendall(b"ZZ\r\n")
        told = all_of(raw)
    assert [told.count(each) for each in (b"HTTP/1.", b" 200 OK\r\n", b" 400 Bad Request\r\n")] == [2, 1, 1], told


def all_of(raw: socket.socket) -> bytes:
    """Read until the other side closes."""
    told = b""
    with suppress(ConnectionResetError):
        while piece := raw.recv(65536):
            told += piece
    return told


def test_who_asks_first_is_told_to_go_on(live: Live) -> None:
    raw = sent(live, b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 13\r\n\r\n")
    assert raw.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
    raw.sendall(b'{"text": "A"}')
    assert answer(raw)[0] == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/"])
def test_head_is_get_without_a_body(live: Live, path: str) -> None:
    got, headed = live.call("GET", path), live.call("HEAD", path)
    assert (headed.status, headed.text) == (200, "")
    assert headed.headers["Content-Type"] == got.headers["Content-Type"]
    assert "HEAD" in live.call("DELETE", path).headers["Allow"]
