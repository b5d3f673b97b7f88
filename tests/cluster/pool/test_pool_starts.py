"""What is told to end while it still starts ends at once: nobody waits out a drain of which there is nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import Signals

import pytest
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import wait_until

from tests.cluster.pool.conftest import Pools
from tests.cluster.pool.pools import Pool, host_path

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]

PROGRAMS = {"worker": b"decodepool\0serve", "gateway": b"decodepool_gateway"}


@pytest.mark.parametrize("component", PROGRAMS)
def test_a_pod_that_is_deleted_while_it_starts_is_gone_soon(component: str, pools: Pools, cluster: Cluster) -> None:
    """Stopped in its first moment, a process stands for one that a busy node has not yet let import what it needs."""
    pool = pools(f"early-{component}").make(host_path("tiny-1.gguf"), drain={"timeoutSeconds": 600})
    pid = stopped_at_its_start(PROGRAMS[component], pool)
    (name,) = (each["metadata"]["name"] for each in pool.pods(component) if each["metadata"]["uid"] in cgroup_of(pid))
    cluster.kubectl("delete", "pod", name, "-n", pool.namespace, "--wait=false")
    wait_until(lambda: is_told_to_end(pid), "the process to be told, and not deaf", 30)
    os.kill(pid, Signals.SIGCONT)
    wait_until(lambda: name not in {each["metadata"]["name"] for each in pool.pods(component)}, "it to be gone", 30)
    pool.delete()


def stopped_at_its_start(program: bytes, pool: Pool) -> int:
    """Wait for the first process of a program that is told the pool's name, and stop it there; return its PID."""
    found: list[int] = []

    def is_there() -> bool:
        found.extend(processes(program, pool.name.encode()))
        return bool(found)

    wait_until(is_there, f"{program!r} to start", 60, 0.02)
    os.kill(found[0], Signals.SIGSTOP)
    return found[0]


def processes(program: bytes, word: bytes) -> Iterator[int]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            told = file.read_bytes()
            if program in told and word in told:
                yield int(file.parent.name)


def cgroup_of(pid: int) -> str:
    """The paths of a process's cgroup, in which its pod's UID is."""
    return Path(f"/proc/{pid}/cgroup").read_text()


def is_told_to_end(pid: int) -> bool:
    """Whether SIGTERM waits for a process that is stopped: the kernel keeps none that would not be heeded."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (pending,) = (line.split()[1] for line in lines if line.startswith("ShdPnd:"))
    return bool(int(pending, 16) >> (Signals.SIGTERM - 1) & 1)
