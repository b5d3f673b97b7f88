"""A13, A14: a process that is told to end does so in time, and every stream gets a last event."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.serving.http_client import events

ROOT = Path(__file__).parents[2]

STOP_MARGIN_SECONDS = 15
"""What a pod has beyond its drain's deadline before it is killed."""


class Process:
    """A worker process. `load_seconds` is how long it loads, `offloaded_seconds` what its threads then have to do."""

    def __init__(
        self, folder: Path, drain_seconds: float, load_seconds: float = 0, offloaded_seconds: float = 0
    ) -> None:
        port_file = folder / "port"
        command = [
            sys.executable,
            "-m",
            "tests.serving.fake_worker",
            str(port_file),
            str(drain_seconds),
            str(load_seconds),
            str(offloaded_seconds),
        ]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=log)
        self.wait(lambda: port_file.exists() and port_file.read_text())
        self.port = int(port_file.read_text())

    def wait(self, claim: Callable[[], Any], seconds: float = 15) -> float:
        began = time.monotonic()
        while not claim():
            assert time.monotonic() - began < seconds, "it did not come to that in time"
            time.sleep(0.02)
        return time.monotonic() - began

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        with answer:
            text = answer.read().decode()
        connection.close()
        return answer.status, text

    def ready(self) -> bool:
        return self.call("GET", "/readyz")[0] == 200

    def create(self) -> str:
        session_id: str = json.loads(self.call("POST", "/v1/sessions", {"prompt": "A B C"})[1])["id"]
        return session_id

    def streaming(self, seen: list[Any], **body: Any) -> threading.Thread:
        path = f"/v1/sessions/{self.create()}/decode"
        thread = threading.Thread(
            target=lambda: seen.extend(events(self.call("POST", path, {"stream": True, "temperature": 0, **body})[1]))
        )
        thread.start()
        self.wait(lambda: '"state":"decoding"' in self.call("GET", "/v1/sessions")[1])
        return thread

    def end(self, *, within: float) -> int:
        return self.process.wait(within)


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Process] = []

    def run(drain_seconds: float, load_seconds: float = 0, offloaded_seconds: float = 0) -> Process:
        made.append(Process(tmp_path, drain_seconds, load_seconds, offloaded_seconds))
        return made[-1]

    yield run
    for each in made:
        each.process.kill()
        each.process.wait()


def test_an_idle_worker_ends_at_once_despite_kept_connections(start: Start) -> None:
    worker = start(30)
    worker.wait(worker.ready)
    worker.create()
    kept = socket.create_connection(("127.0.0.1", worker.port))
    kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert kept.recv(4096)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end(within=3) == 0
    kept.close()


@pytest.mark.parametrize(
    "half",
    [b"GET /hea", b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"],
    ids=["header", "body"],
)
def test_a_request_that_is_half_there_is_not_waited_for(start: Start, half: bytes) -> None:
    worker = start(30)
    worker.wait(worker.ready)
    with socket.create_connection(("127.0.0.1", worker.port), timeout=5) as waiting:
        waiting.sendall(half)
        time.sleep(0.2)
        worker.process.send_signal(signal.SIGTERM)
        answered = waiting.recv(4096)
        assert answered.startswith(b"HTTP/1.1 503") or b"POST" not in half
        assert worker.end(within=1.5) == 0


def test_a_running_stream_goes_on_to_its_end(start: Start) -> None:
    worker = start(30)
    seen: list[Any] = []
    worker.wait(worker.ready)
    thread = worker.streaming(seen, max_tokens=80)
    worker.process.send_signal(signal.SIGTERM)
    worker.wait(lambda: worker.call("GET", "/readyz")[0] == 503)
    status, text = worker.call("POST", "/v1/sessions", {"prompt": "A"})
    assert (status, json.loads(text)["error"]["code"]) == (503, "draining")
    thread.join(10)
    assert (seen[-1]["event"], seen[-1]["data"]["usage"]["completion_tokens"]) == ("done", 80)
    assert worker.end(within=4) == 0


def test_at_the_deadline_a_stream_ends_with_an_error_that_says_so(start: Start) -> None:
    worker = start(1)
    seen: list[Any] = []
    worker.wait(worker.ready)
    thread = worker.streaming(seen)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end(within=5) == 0
    thread.join(5)
    assert (seen[-1]["event"], seen[-1]["data"]["error"]["code"]) == ("error", "draining")
    assert "deadline" in seen[-1]["data"]["error"]["message"]


@pytest.mark.slow  # the step has the eight seconds that a stop gives it
def test_a_step_that_hangs_does_not_hold_the_end_up(start: Start) -> None:
    worker = start(1)
    worker.wait(worker.ready)
    reader = HTTPConnection("127.0.0.1", worker.port, timeout=30)
    reader.request("POST", f"/v1/sessions/{worker.create()}/decode", json.dumps({"stream": True, "temperature": 0}))
    with reader.getresponse() as stream:
        assert stream.read(10)
        worker.process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end(within=1 + STOP_MARGIN_SECONDS) == 0
    reader.close()


def test_an_engine_that_fails_during_a_drain_ends_the_process_with_1(start: Start, tmp_path: Path) -> None:
    worker = start(30)
    seen: list[Any] = []
    worker.wait(worker.ready)
    thread = worker.streaming(seen)
    worker.process.send_signal(signal.SIGTERM)
    worker.wait(lambda: worker.call("GET", "/readyz")[0] == 503)
    worker.process.send_signal(signal.SIGUSR2)
    assert worker.end(within=4) == 1
    thread.join(5)
    assert (seen[-1]["event"], seen[-1]["data"]["error"]["code"]) == ("error", "engine_failed")
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    assert "drained" not in [line["message"] for line in lines]
    assert "illegal memory access" in next(line for line in lines[::-1] if line["level"] == "critical")["message"]


def test_a_second_signal_means_now(start: Start) -> None:
    worker = start(300)
    seen: list[Any] = []
    worker.wait(worker.ready)
    thread = worker.streaming(seen)
    worker.process.send_signal(signal.SIGTERM)
    worker.wait(lambda: worker.call("GET", "/readyz")[0] == 503)
    worker.process.send_signal(signal.SIGINT)
    assert worker.end(within=4) == 0
    thread.join(5)
    assert seen[-1]["event"] == "error"


def test_a_load_does_not_hold_the_end_up(start: Start) -> None:
    worker = start(30, 60)
    assert worker.call("GET", "/healthz")[0] == 200
    assert worker.call("GET", "/readyz")[0] == 503
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end(within=3) == 0


def test_work_that_threads_have_does_not_hold_the_end_up(start: Start) -> None:
    worker = start(30, offloaded_seconds=60)
    worker.wait(worker.ready)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end(within=2) == 0
