"""`python -m decodepool_gateway`: what it is told wrongly, it says in one line."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from decodepool_gateway import command


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "decodepool_gateway", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--pool"),
        (["--pool=p"], "--worker NAME=URL"),
        (["--pool=p", "--namespace=n"], "--service"),
        (["--pool=p", "--namespace=n", "--service=s", "--worker=a=http://x"], "not both"),
        (["--pool=p", "--worker=http://127.0.0.1:1"], "--worker"),
        (["--pool=p", "--worker=a=http://x", "--worker=a=http://y"], "twice"),
        (["--pool=p", "--worker=a=http://127.0.0.1:1", "--api-keys=/nowhere"], "/nowhere"),
        (["--pool=p", "--worker=a=http://127.0.0.1:1", "--port=70000"], "--port"),
        (["--pool=p", "--worker=a=http://127.0.0.1:1", "--host=no.such.host.invalid"], "no.such.host.invalid"),
        (["--pool=p", "--worker=a=http://127.0.0.1:1", "--host=no..host"], "--host/--port: 'no..host' is no host"),
        (["--pool=p", "--worker=a=http://127.0.0.1:1", "--colour"], "--colour"),
        (["--pool=p", "--namespace=n", "--service=s"], "cluster"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line(words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = run(*words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        done = run("--pool=p", "--worker=a=http://127.0.0.1:1", "--host=127.0.0.1", f"--port={port}")
    assert done.returncode == 2
    assert "Address already in use" in done.stderr


def test_a_host_that_is_none_is_told_in_words() -> None:
    done = run("--pool=p", "--worker=a=http://127.0.0.1:1", "--host=no.such.host.invalid")
    assert "Errno" not in done.stderr


def test_an_address_that_the_machine_cannot_have_is_told_with_its_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: int) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", refused)
    words = ["decodepool_gateway", "--pool=p", "--worker=a=http://127.0.0.1:1", "--host=::1"]
    monkeypatch.setattr(sys, "argv", words)
    assert command.main() == 2
    assert "cannot listen on ::1:8080: Address family not supported by protocol" in capsys.readouterr().err


def test_help_names_every_option() -> None:
    done = run("--help")
    assert done.returncode == 0
    for option in (
        "--pool",
        "--namespace",
        "--service",
        "--worker",
        "--api-keys",
        "--queue-timeout",
        "--drain-timeout",
    ):
        assert option in done.stdout
