"""Headers by URL, against a real server that may misbehave in any one way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from decodepool_sizing import http_connections
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import read_header
from decodepool_sizing.http_connections import is_local
from decodepool_sizing.ranged_http import FIRST_REQUEST_BYTES, HttpReader
from decodepool_sizing.readers import model_reader

from tests.sizing.gguf_bytes import METADATA, gguf, tensors, tiny

LARGE = gguf({**METADATA, "x.padding": "p" * (3 << 20)}, tensors()) + bytes(5 << 20)
TOKEN = {"Authorization": "Bearer secret"}


@dataclass
class Served:
    """What a server has, and what it saw. `misbehave` may answer in its place."""

    data: bytes
    misbehave: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
    ranges: list[tuple[int, int]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    url: str = ""


@contextmanager
def served(data: bytes, misbehave: Callable[[Any], bool] = lambda _: False) -> Iterator[Served]:
    state = Served(data, misbehave)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.tokens.append(self.headers.get("Authorization"))
            if not state.misbehave(self):
                begin, last = asked(self)
                state.ranges.append((begin, last))
                send(self, state.data[begin : last + 1], begin, len(state.data))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/model.gguf"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asked(handler: BaseHTTPRequestHandler) -> tuple[int, int]:
    begin, last = handler.headers["Range"].removeprefix("bytes=").split("-")
    return int(begin), int(last)


def send(handler: BaseHTTPRequestHandler, body: bytes, begin: int, total: int | str, status: int = 206) -> bool:
    handler.send_response(status)
    handler.send_header("Content-Range", f"bytes {begin}-{begin + len(body) - 1}/{total}")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
    return True


def redirect(handler: BaseHTTPRequestHandler, url: str) -> bool:
    handler.send_response(302)
    handler.send_header("Location", url)
    handler.send_header("Content-Length", "0")
    handler.end_headers()
    return True


def test_a_small_header_costs_one_request() -> None:
    with served(tiny()) as server, model_reader(server.url) as reader:
        assert reader.file_bytes == len(tiny())
        assert read_header(reader).architecture == "llama"
        assert server.ranges == [(0, FIRST_REQUEST_BYTES - 1)]


def test_a_large_header_is_read_without_the_weights() -> None:
    with served(LARGE) as server:
        header = read_header(HttpReader(server.url))
        assert header.file_bytes == len(LARGE)
        assert len(server.ranges) <= 6
        assert max(last for _, last in server.ranges) < len(LARGE) - (1 << 20)


def test_a_read_at_the_end_is_short() -> None:
    with served(tiny()) as server:
        reader = HttpReader(server.url)
        assert reader(len(tiny()) - 5, 100) == tiny()[-5:]
        assert reader(len(tiny()), 1) == b""


def test_credentials_go_to_the_urls_own_host() -> None:
    with served(tiny()) as server:
        HttpReader(server.url, TOKEN)
        assert server.tokens == ["Bearer secret"]


def test_a_redirect_is_followed_and_takes_no_credentials_elsewhere() -> None:
    with served(tiny()) as target, served(b"", lambda handler: redirect(handler, target.url)) as door:
        assert read_header(HttpReader(door.url, TOKEN)).architecture == "llama"
        assert door.tokens == ["Bearer secret"]
        assert target.tokens == [None]


def test_a_redirect_on_the_same_host_keeps_credentials() -> None:
    def once(handler: BaseHTTPRequestHandler) -> bool:
        return handler.path == "/model.gguf" and redirect(handler, "/moved.gguf")

    with served(tiny(), once) as server:
        assert read_header(HttpReader(server.url, TOKEN)).architecture == "llama"
        assert server.tokens == ["Bearer secret", "Bearer secret"]


def ignores_range(handler: BaseHTTPRequestHandler) -> bool:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(tiny())))
    handler.end_headers()
    handler.wfile.write(tiny())
    return True


def forbids(handler: BaseHTTPRequestHandler) -> bool:
    handler.send_error(403, "no\nway")
    return True


def closes(handler: BaseHTTPRequestHandler) -> bool:
    handler.close_connection = True
    handler.connection.close()
    return True


def cuts_the_body(handler: BaseHTTPRequestHandler) -> bool:
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes 0-{FIRST_REQUEST_BYTES - 1}/{len(tiny())}")
    handler.end_headers()
    handler.wfile.write(tiny()[:100])
    return True


MISDEEDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "ignores ranges": (ignores_range, "put the file where they are served, or on a disk or claim"),
    "no total": (lambda h: send(h, tiny(), 0, "*"), "Content-Range does not tell the file's size"),
    "another range": (lambda h: send(h, tiny()[5:], 5, len(tiny())), "was asked for bytes 0-262143 and sent 5-"),
    "less than asked": (lambda h: send(h, tiny()[:50], 0, len(tiny())), "was asked for bytes 0-262143 and sent 0-49"),
    "a short body": (cuts_the_body, "the server sent 100 bytes of a range of"),
    "no right": (forbids, "the server answers 403 Forbidden"),
    "nothing there": (lambda h: bool(h.send_error(404)) or True, "the server answers 404 Not Found"),
    "an empty file": (lambda h: bool(h.send_error(416)) or True, "no bytes at all"),
    "a closed door": (closes, "cannot be fetched: "),
    "no HTTP": (lambda h: bool(h.wfile.write(b"SSH-2.0-x")), "what answers does not speak HTTP"),
    "another protocol": (lambda h: redirect(h, "ftp://127.0.0.1/x"), "redirected from http to ftp"),
    "around in circles": (lambda h: redirect(h, "/model.gguf"), "the server answers 302"),
}


@pytest.mark.parametrize("name", MISDEEDS)
def test_a_server_that_misbehaves_is_an_error_in_a_line(name: str) -> None:
    misdeed, text = MISDEEDS[name]
    with served(b"", misdeed) as server, pytest.raises(BadModelFile, match=text) as caught:
        HttpReader(server.url, timeout_seconds=5)
    assert "\n" not in str(caught.value)


def test_a_file_that_changes_while_it_is_read_is_refused() -> None:
    with served(LARGE) as server:
        reader = HttpReader(server.url)
        server.data += b"more"
        with pytest.raises(BadModelFile, match="the file changed while its header was read"):
            reader(1 << 20, 100)


def test_a_server_that_says_nothing_is_given_up() -> None:
    release = threading.Event()
    with served(b"", lambda _: release.wait(10)) as server:
        with pytest.raises(BadModelFile, match="cannot be fetched: timed out"):
            HttpReader(server.url, timeout_seconds=0.2)
        release.set()


def test_nobody_there_is_an_error_in_a_line() -> None:
    with pytest.raises(BadModelFile, match="cannot be fetched: Connection refused"):
        HttpReader("http://127.0.0.1:9/x")


def drips_its_body(handler: BaseHTTPRequestHandler) -> bool:
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes 0-{FIRST_REQUEST_BYTES - 1}/{len(tiny())}")
    handler.end_headers()
    return drips(handler, tiny())


def drips_its_headers(handler: BaseHTTPRequestHandler) -> bool:
    return drips(handler, b"HTTP/1.1 206 Partial Content\r\nX-Padding: " + b"x" * 10_000)


def drips(handler: BaseHTTPRequestHandler, data: bytes) -> bool:
    """A byte now and then: no single wait is long."""
    with suppress(OSError):  # the reader is gone
        for byte in data:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.02)
    return True


@pytest.mark.parametrize("dripping", [drips_its_body, drips_its_headers])
def test_a_server_that_drips_is_given_up_when_the_time_is_over(dripping: Callable[[Any], bool]) -> None:
    began = time.monotonic()
    with served(b"", dripping) as server:
        with pytest.raises(BadModelFile, match=r"cannot be fetched: (the server was too slow|timed out)"):
            HttpReader(server.url, timeout_seconds=5, total_seconds=0.5)
        assert time.monotonic() - began < 4


LOCAL = [
    "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.169.254", "fe80::1%eth0",
    "::ffff:169.254.169.254", "fd00:ec2::254",
]  # fmt: skip


@pytest.mark.parametrize("address", LOCAL)
def test_addresses_of_the_machine_its_link_and_its_cloud_are_local(address: str) -> None:
    assert is_local(address)


@pytest.mark.parametrize("address", ["10.96.0.10", "192.168.1.1", "172.16.0.1", "fd00::10", "93.184.216.34"])
def test_addresses_of_services_and_of_the_world_are_not(address: str) -> None:
    assert not is_local(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0"])
def test_where_local_addresses_are_not_read_none_is_asked_however_it_is_written(host: str) -> None:
    with served(tiny()) as server:
        url = server.url.replace("127.0.0.1", host)
        with pytest.raises(BadModelFile, match="nothing is read from loopback and link-local addresses"):
            HttpReader(url, local_addresses=False)
        assert server.tokens == []


def test_a_redirect_to_a_local_address_is_not_followed_where_none_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host is let through, since a test's servers are local all of them."""
    with served(tiny()) as target, served(b"", lambda handler: redirect(handler, target.url)) as door:
        answers = iter([False, True])
        monkeypatch.setattr(http_connections, "is_local", lambda _: next(answers))
        with pytest.raises(BadModelFile, match="nothing is read from loopback"):
            HttpReader(door.url, local_addresses=False)
        assert (len(door.tokens), target.tokens) == (1, [])


@pytest.mark.parametrize("url", ["http://user:sesame@models.example/x", "http://127.0.0.1/x\x01?token=sesame"])
def test_a_url_that_cannot_be_asked_for_is_not_shown(url: str) -> None:
    with pytest.raises(BadModelFile, match="cannot be fetched: ") as told:
        HttpReader(url)
    assert "sesame" not in str(told.value)


def test_a_users_name_and_password_are_looked_up_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_up(*_: object, **__: object) -> None:
        pytest.fail("a name was looked up")

    monkeypatch.setattr("socket.getaddrinfo", looked_up)
    with pytest.raises(BadModelFile, match="user and password are not used") as told:
        HttpReader("http://user:sesame@models.example/x")
    assert "sesame" not in str(told.value)


def test_a_redirect_to_a_users_url_is_not_followed() -> None:
    with served(b"", lambda handler: redirect(handler, "http://user:sesame@models.example/x")) as door:
        with pytest.raises(BadModelFile, match="user and password are not used") as told:
            HttpReader(door.url)
        assert "sesame" not in str(told.value)
