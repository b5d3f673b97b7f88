"""Commands that keep running, as processes of their own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

START_SECONDS = 120
"""A first start compiles kernels."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(claim: Callable[[], Any], seconds: float = START_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.05)


def call(url: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
    except OSError:
        return 0, None


class Running:
    """A `decodepool` process. Its output goes to files in `folder`."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.out, self.err = folder / "out", folder / "err"
        command = [sys.executable, "-m", "decodepool_cli", *map(str, words)]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)

    def says(self, text: str, seconds: float = START_SECONDS) -> None:
        """Wait until it has said so."""
        until(lambda: text in self.out.read_text() + self.err.read_text() or self.process.poll() is not None, seconds)
        assert text in self.out.read_text() + self.err.read_text(), self.err.read_text()[-500:]

    def children(self) -> list[int]:
        """Process ids of its children."""
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self, within: float = 15) -> int:
        return self.process.wait(within)


def is_alive(process_id: int) -> bool:
    """Whether there is such a process, and it is not merely waiting to be reaped."""
    try:
        return bool(psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
