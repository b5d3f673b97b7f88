from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from decodepool_cli import serve as serve_module
from decodepool_worker.serving.service import Service

from tests.cli.conftest import Call
from tests.cli.processes import Running, call, free_port, until
from tests.sizing.gguf_bytes import tiny

Start = Callable[..., Running]


@pytest.fixture
def untold(tmp_path: Path) -> Path:
    """A sound model without a tokenizer."""
    path = tmp_path / "untold.gguf"
    path.write_bytes(tiny({"tokenizer.ggml.model": "none", "tokenizer.ggml.tokens": None}))
    return path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Running] = []

    def run(*words: object) -> Running:
        made.append(Running(tmp_path, *words))
        return made[-1]

    yield run
    for each in made:
        each.process.kill()
        each.process.wait()


@pytest.mark.slow
def test_it_says_what_it_loads_and_where_it_is_and_ends_with_zero(start: Start, untold: Path) -> None:
    port = free_port()
    options = ("--context=64", "--sessions=3", f"--port={port}", "--name=nameless", "--local-clients")
    worker = start("serve", untold, *options)
    worker.says("ready")
    loading, line = worker.out.read_text().splitlines()
    assert re.fullmatch(r"nameless: 3 sessions of 64 tokens, [0-9.]+ [KM]iB in all; loading", loading)
    assert f"http://127.0.0.1:{port}/" in line
    assert "3 sessions of 64 tokens" in line
    url = f"http://127.0.0.1:{port}"
    assert call(url + "/v1/capacity")[1]["sessions"]["capacity"] == 3
    session = call(url + "/v1/sessions", {"tokens": [1, 2, 3]})[1]["id"]
    status, answer = call(f"{url}/v1/sessions/{session}/decode", {"max_tokens": 5, "temperature": 0})
    assert (status, len(answer["tokens"]), answer["text"]) == (200, 5, "")
    status, answer = call(url + "/v1/sessions", {"prompt": "text"})
    assert (status, answer["error"]["code"]) == (400, "unsupported_parameter")
    status, answer = call(
        url + "/v1/chat/completions", {"model": "nameless", "messages": [{"role": "user", "content": "x"}]}
    )
    assert (status, answer["error"]["code"]) == (400, "unsupported_parameter")
    worker.signal()
    assert worker.end() == 0


@pytest.mark.slow
def test_ctrl_c_is_an_end_like_any_other(start: Start, untold: Path) -> None:
    worker = start("serve", untold, "--context=64", "--sessions=2", f"--port={free_port()}", "--log-json")
    worker.says("ready")
    worker.signal(signal.SIGINT)
    assert worker.end() == 0
    said = worker.err.read_text()
    assert "a second signal ends them now" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (["--context=0"], 2, "--context"),
        (["--context=64", "--port=65536"], 2, "--port"),
        (["--context=64", "--memory=4 potatoes"], 2, "--memory"),
        (["--context=64", "--kv-type=q3"], 2, "--kv-type"),
        (["--context=64", "--api-keys=/nowhere"], 2, "--api-keys"),
        (["--context=64", "--host=no.such.host.invalid"], 2, "no.such.host.invalid"),
        (["--context=64", "--host=no..host"], 2, "'no..host' is no host"),
        (["--context=64", "--drain-timeout=-1"], 2, "--drain-timeout"),
        (["--context=64", "--name="], 2, "--name"),
        (["--context=64", "--name=two\nlines"], 2, "--name"),
    ],
)
def test_bad_usage_is_one_line(call: Call, untold: Path, options: list[str], code: int, named: str) -> None:
    done = call("serve", untold, *options)
    assert done.code == code
    assert named in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--sessions=257"], 2, "257 sessions: a worker holds 1 to 256"),
        (["--memory=900TiB"], 1, f"{900 << 40} bytes (900.00 TiB) of memory are to be used, but this machine has "),
        (["--cache-reserve=900TiB"], 1, f"a cache reserve of {900 << 40} bytes (900.00 TiB) needs "),
    ],
    ids=["sessions", "memory", "cache reserve"],
)
def test_what_no_worker_can_hold_is_refused_with_its_numbers(
    call: Call, untold: Path, options: list[str], code: int, said: str
) -> None:
    done = call("serve", untold, "--context=64", "--port=0", *options)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "keys", "warns"),
    [("0.0.0.0", None, True), ("0.0.0.0", "secret\n", False), ("127.0.0.1", None, False), ("::1", None, False)],
    ids=["open", "with keys", "loopback", "loopback of IPv6"],
)
def test_an_open_door_is_warned_of(
    call: Call, untold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, keys: str | None, warns: bool
) -> None:
    async def serve_no_time(service: Service, listener: socket.socket, *_: object) -> int:
        listener.close()
        return 0

    monkeypatch.setattr("decodepool_cli.serve.serve_until_stopped", serve_no_time)
    monkeypatch.setattr("decodepool_cli.serve.end_process", lambda code: None)
    options = [f"--host={host}", "--port=0", "--context=64"]
    if keys is not None:
        (tmp_path / "keys").write_text(keys)
        options.append(f"--api-keys={tmp_path / 'keys'}")
    done = call("serve", untold, *options)
    assert done.code == 0, done.err
    assert ("anybody who reaches 0.0.0.0 may use it" in done.err) == warns


def test_a_taken_port_is_told_with_its_number(call: Call, untold: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = call("serve", untold, "--context=64", f"--port={port}")
    assert done.code == 2
    assert done.err == f"decodepool: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("content", [b"", b"<html>not a model</html>", tiny()[:-1]], ids=["empty", "html", "cut"])
def test_a_broken_file_is_refused_before_anything_listens(call: Call, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    done = call("serve", path, "--context=64")
    assert done.code == 2
    assert "broken.gguf" in done.err
    assert done.err.count("\n") == 1


SLOW_BODIES = """
import sys, time
from decodepool_worker.serving import requests
requests.read_body = lambda model, data: time.sleep(60)
from decodepool_cli.main import main
sys.exit(main())
"""


@pytest.mark.slow
def test_a_body_that_takes_a_minute_to_check_does_not_hold_the_end_up(tmp_path: Path, untold: Path) -> None:
    port = free_port()
    command = [
        sys.executable,
        "-c",
        SLOW_BODIES,
        "serve",
        str(untold),
        "--context=64",
        "--sessions=2",
        f"--port={port}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(lambda: call(f"http://127.0.0.1:{port}/readyz")[0] == 200)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + b" " * 5000)
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            try:
                assert client.recv(4096).startswith(b"HTTP/1.1 503")
                assert process.wait(2) == 0
            finally:
                process.kill()


def test_a_reader_of_its_lines_that_leaves_ends_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left:
        def write(self, line: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Left())
    serve_module._say("ready")
