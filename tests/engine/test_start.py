"""A real worker, started as users start it: how soon it is ready, and how much memory it really holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.processes import Running, call, free_port

pytestmark = [pytest.mark.model, pytest.mark.slow]

READY_SECONDS = 5.0
NOISE = 3.0
"""The promise is for a quiet machine. Tests may share theirs, so they allow three times as long, and count the
processor's time where that is less than the clock's.
"""
MEMORY_TOLERANCE = 0.05


@dataclass(frozen=True)
class Started:
    """A worker of SmolLM2 whose kernels were compiled and whose file was in memory before it started."""

    url: str
    process_id: int
    ready_seconds: float
    processor_seconds: float

    def capacity(self) -> Any:
        return call(f"{self.url}/v1/capacity")[1]

    def status_bytes(self, field: str) -> int:
        """A field of the kernel's account of the process, such as its resident memory at its highest."""
        for line in Path(f"/proc/{self.process_id}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
        raise AssertionError(f"no {field}")


def run(folder: Path, model: Path) -> tuple[Running, Started]:
    port, began = free_port(), time.monotonic()
    running = Running(folder, "serve", model, "--context=2048", "--sessions=8", f"--port={port}")
    running.says("ready")
    seconds, used = time.monotonic() - began, psutil.Process(running.process.pid).cpu_times()
    return running, Started(f"http://127.0.0.1:{port}", running.process.pid, seconds, used.user + used.system)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("worker")
    for is_warm in (False, True):
        running, worker = run(folder, smollm2)
        try:
            if is_warm:
                yield worker
        finally:
            running.signal()
            assert running.end() == 0


def test_ready_within_seconds_from_warm_caches(
    started: Started, record_property: Callable[[str, object], None]
) -> None:
    record_property("ready_seconds", started.ready_seconds)
    record_property("processor_seconds", started.processor_seconds)
    assert min(started.ready_seconds, started.processor_seconds) < READY_SECONDS * NOISE


def test_resident_memory_is_the_plans(started: Started) -> None:
    for _ in range(3):
        made = call(f"{started.url}/v1/sessions", {"prompt": "Once upon a time " * 60})[1]
        status, _ = call(f"{started.url}/v1/sessions/{made['id']}/decode", {"max_tokens": 16, "ignore_eos": True})
        assert status == 200
    capacity = started.capacity()
    planned, measured = (capacity[side]["resident_bytes"] for side in ("planned", "measured"))
    assert measured == pytest.approx(planned, rel=MEMORY_TOLERANCE)
    assert started.status_bytes("VmHWM") < planned * (1 + MEMORY_TOLERANCE)
