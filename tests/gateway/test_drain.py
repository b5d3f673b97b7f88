"""The end of a gateway: it lets go of nobody in the middle of an answer, and of everybody in time."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.gateway.processes import PoolProcess, WorkerProcess, answers, gateway, running_pool, until
from tests.serving.http_client import events

pytestmark = pytest.mark.slow  # a gateway of its own for each, that takes its time to end


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WorkerProcess]]:
    with running_pool(tmp_path_factory.mktemp("pool"), ["a"], each=["--step-seconds=0.02"]) as pool:
        yield list(pool.workers.values())


@pytest.fixture
def pool(workers: list[WorkerProcess], tmp_path: Path) -> Iterator[PoolProcess]:
    """A gateway of the test's own, before the file's worker; it waits for 3 s."""
    running = gateway(tmp_path, workers, "--drain-timeout=3")
    until(lambda: running.popen.poll() is None and answers(running, "/readyz"))
    yield running
    running.kill()
    workers[0].close_all()


def begin(pool: PoolProcess, **body: object) -> HTTPConnection:
    """Begin to stream a decode of a new session."""
    connection = HTTPConnection("127.0.0.1", pool.port, timeout=30)
    wanted = json.dumps({"temperature": 0, "stream": True, **body})
    connection.request("POST", f"/v1/sessions/{pool.create()}/decode", wanted)
    return connection


def test_a_stream_under_way_runs_to_its_end(pool: PoolProcess) -> None:
    connection = begin(pool, max_tokens=60)
    answer = connection.getresponse()
    pool.signal()
    got = events(answer.read().decode())
    assert got[-1]["event"] == "done"
    assert len(got) == 61
    assert pool.end() == 0
    connection.close()


def test_a_stream_that_is_too_long_gets_a_last_event(pool: PoolProcess, workers: list[WorkerProcess]) -> None:
    connection = begin(pool, max_tokens=4000)
    answer = connection.getresponse()
    began = time.monotonic()
    pool.signal()
    got = events(answer.read().decode())
    assert got[-1]["event"] == "error"
    assert got[-1]["data"]["error"]["code"] == "draining"
    assert pool.end() == 0
    assert 2.5 < time.monotonic() - began < 8
    until(lambda: workers[0].busy() == 0, 2)
    connection.close()


def test_a_whole_answer_that_takes_too_long_is_refused(pool: PoolProcess) -> None:
    connection = begin(pool, max_tokens=4000, stream=False)
    until(lambda: pool.busy() == 1, 5)
    pool.signal()
    answer = connection.getresponse()
    assert answer.status == 503
    assert json.loads(answer.read())["error"]["code"] == "draining"
    assert pool.end() == 0
    connection.close()


def test_the_second_signal_means_now(pool: PoolProcess) -> None:
    connection = begin(pool, max_tokens=4000)
    answer = connection.getresponse()
    began = time.monotonic()
    pool.signal(signal.SIGINT)
    time.sleep(0.3)
    pool.signal(signal.SIGINT)
    assert events(answer.read().decode())[-1]["event"] == "error"
    assert pool.end() == 0
    assert time.monotonic() - began < 2.5
    connection.close()


def test_nobody_connects_and_idle_connections_close_while_it_drains(pool: PoolProcess) -> None:
    stream = begin(pool, max_tokens=100)
    stream.getresponse().read1(1)
    idle = HTTPConnection("127.0.0.1", pool.port, timeout=5)
    idle.request("GET", "/healthz")
    idle.getresponse().read()
    pool.signal()
    assert idle.sock.recv(1) == b"", "closed"
    until(lambda: not connects(pool.port), 5)
    assert pool.popen.poll() is None, "the stream goes on"
    stream.close()
    idle.close()
    assert pool.end() == 0


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_an_idle_gateway_ends_at_once(pool: PoolProcess) -> None:
    began = time.monotonic()
    pool.signal()
    assert pool.end() == 0
    assert time.monotonic() - began < 2
