"""A pool on this machine: worker processes, a gateway process, real sockets between them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decodepool_sizing.session_ids import worker_tag

from tests.cli.processes import free_port
from tests.serving.http_client import Client

START_SECONDS = 90.0
"""Of a process on a busy machine; a worker's imports alone take seconds."""

END_SECONDS = 20.0


@dataclass
class Process:
    """One process of the pool, its stderr in a file."""

    popen: subprocess.Popen[bytes]
    log: Path

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def end(self, seconds: float = END_SECONDS) -> int:
        return self.popen.wait(seconds)


@dataclass
class WorkerProcess(Process, Client):
    """A worker of the pool."""

    name: str

    @property
    def tag(self) -> str:
        return worker_tag(self.name)


@dataclass
class PoolProcess(Process, Client):
    """The pool's gateway, and the workers behind it."""

    workers: dict[str, WorkerProcess] = field(default_factory=dict)

    def worker_of(self, session_id: str) -> WorkerProcess:
        """The worker that has a session, by its tag."""
        return next(worker for worker in self.workers.values() if session_id.startswith(f"s-{worker.tag}-"))

    @property
    def ready_workers(self) -> float:
        return self.metric('decodepool_pool_workers{state="ready"}')

    def metric(self, name: str) -> float:
        """A sample of the gateway's metrics, by its name and labels; 0 where there is none."""
        lines = self.call("GET", "/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)


def spawn(folder: Path, name: str, *words: object) -> tuple[subprocess.Popen[bytes], Path]:
    log = folder / f"{name}.log"
    with log.open("ab") as err:
        command = [sys.executable, "-m", *map(str, words)]
        return subprocess.Popen(command, stdout=err, stderr=err, stdin=subprocess.DEVNULL), log


def worker(folder: Path, name: str, port: int, *options: object) -> WorkerProcess:
    """Start a worker of the byte model."""
    popen, log = spawn(folder, name, "tests.gateway.byte_worker", name, f"--port={port}", *options)
    return WorkerProcess(f"http://127.0.0.1:{port}", port, popen, log, name)


def gateway(folder: Path, workers: Sequence[WorkerProcess], *options: object) -> PoolProcess:
    """Start a gateway before some workers."""
    port = free_port()
    listed = [f"--worker={each.name}={each.url}" for each in workers]
    common = ("decodepool_gateway", "--pool=bytes", "--host=127.0.0.1", f"--port={port}")
    popen, log = spawn(folder, "gateway", *common, *listed, *options)
    return PoolProcess(f"http://127.0.0.1:{port}", port, popen, log, {each.name: each for each in workers})


@contextmanager
def running_pool(
    folder: Path, names: Sequence[str] = ("a", "b"), *, each: Sequence[object] = (), options: Sequence[object] = ()
) -> Iterator[PoolProcess]:
    """Run workers with the options `each`, and a gateway with `options` before them; all are ready at first."""
    with ExitStack() as stack:
        workers = [worker(folder, name, free_port(), *each) for name in names]
        pool = gateway(folder, workers, *options)
        for process in (*workers, pool):
            stack.callback(process.kill)
        until(
            lambda: answers(pool, "/readyz") and pool.metric('decodepool_pool_workers{state="ready"}') == len(workers)
        )
        yield pool


def answers(client: Client, path: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        return client.call("GET", path).status == 200
    except OSError:
        return False


def until(claim: Callable[[], Any], seconds: float = START_SECONDS) -> float:
    """Wait until a claim holds; return how long that took."""
    began = time.monotonic()
    while not claim():
        assert time.monotonic() - began < seconds, "it did not come to that in time"
        time.sleep(0.02)
    return time.monotonic() - began
