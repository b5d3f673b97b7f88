"""The relay between this machine and a cluster's network, and the port it listens on."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from decodepool_cluster import up
from decodepool_cluster.linux import ClusterFault
from decodepool_cluster.relay import Relay


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that answers once its client has said all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as said:
                connection.sendall(said.read().upper())

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def test_a_client_that_has_said_all_is_still_answered(echo: int) -> None:
    with Relay("127.0.0.1", echo) as relay, socket.create_connection(("127.0.0.1", relay.port), 10) as client:
        client.sendall(b"hello")
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answer:
            assert answer.read() == b"HELLO"


def test_an_answer_that_takes_its_time_comes_however_long_ago_its_client_has_said_all() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as far,
        Relay("127.0.0.1", far.getsockname()[1]) as relay,
        socket.create_connection(("127.0.0.1", relay.port), 10) as client,
    ):
        client.shutdown(socket.SHUT_WR)
        connection, _ = far.accept()
        with connection:
            assert connection.recv(1) == b""
            time.sleep(0.2)  # until the relay does nothing but wait for the answer
            gc.collect()
            connection.sendall(b"late")
        assert client.recv(9) == b"late"


@pytest.mark.parametrize("wanted", ["0", "65536", "99999", "-1", "http", "8000 "])
def test_what_is_no_port_is_said_before_anything_starts(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", wanted)
    with pytest.raises(ClusterFault, match="is not a port"):
        up.asked_port()


@pytest.mark.parametrize(("wanted", "port"), [("", None), ("9000", 9000)])
def test_a_port_may_be_asked_for(wanted: str, port: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", wanted)
    assert up.asked_port() == port


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that something else listens on."""
    with socket.create_server(("", 0)) as listener:
        yield listener.getsockname()[1]


def test_another_port_than_the_usual_one_is_told_with_the_reason(
    taken: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PORT", raising=False)
    monkeypatch.setattr(up, "PORTS", range(taken, taken + 50))
    port = up.free_port()
    assert taken < port < taken + 50
    told = capsys.readouterr().err
    assert f"port {taken} is taken" in told
    assert f"port {port}" in told


def test_the_usual_port_needs_no_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PORT", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    monkeypatch.setattr(up, "PORTS", range(free, free + 1))
    assert up.free_port() == free
    assert capsys.readouterr().err == ""


def test_a_port_that_is_asked_for_and_taken_is_no_other_one(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", str(taken))
    with pytest.raises(ClusterFault, match=f"port {taken} is taken"):
        up.free_port()
