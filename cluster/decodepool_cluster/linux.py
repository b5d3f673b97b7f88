"""What the cluster needs of Linux: commands, waiting, processes, cgroups of either version, network namespaces."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
ZOMBIE, DEAD = "Z", "X"
THREADS_FIELD, START_TIME_FIELD = 17, 19
"""Of /proc/PID/stat, counted after the command's name."""


class ClusterFault(Exception):  # noqa: N818 - what it is called in sentences
    """Something outside this package did not do its part; the message says what, in words for a person."""


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    given: str | None = None,
    seconds: float = 600,
) -> str:
    """Run a command to its end and return what it printed. ClusterFault, with its last words, where it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - commands of this package and of its user
            command, env=environment, input=given, timeout=seconds, text=True, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise ClusterFault(f"{command[0]} is missing on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterFault(f"{' '.join(command)[:200]}: still running after {seconds:.0f} s") from error
    if done.returncode:
        raise ClusterFault(f"{' '.join(command)[:200]}: exit {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def wait_until(is_true: Callable[[], object], what: str, seconds: float = 30, every_seconds: float = 0.1) -> None:
    """Return once a question is answered yes; a ClusterFault or OSError while asking counts as not yet.

    ClusterFault after `seconds`, naming what was waited for and what stood in the way last.
    """
    deadline = time.monotonic() + seconds
    while True:
        error: Exception | None = None
        try:
            if is_true():
                return
        except (OSError, ClusterFault) as fault:
            error = fault
        if time.monotonic() > deadline:
            raise ClusterFault(f"waited {seconds:.0f} s for {what}" + (f": {error}" if error else "")) from error
        time.sleep(every_seconds)


def start_time(pid: int) -> int | None:
    """Return when a process was started, in clock ticks, or None if it is gone: it tells a PID from its next owner.

    A process whose first thread is a zombie has its files and ports for as long as it has another one.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    is_gone = fields[0] == DEAD or (fields[0] == ZOMBIE and int(fields[THREADS_FIELD]) <= 1)
    return None if is_gone else int(fields[START_TIME_FIELD])


def mark_of(pid: int) -> str:
    """Return PID.START, which no other process ever has."""
    return f"{pid}.{start_time(pid)}"


def is_alive(mark: str) -> bool:
    """Tell whether the process with a mark runs."""
    pid, _, started = mark.partition(".")
    now = start_time(int(pid))
    return now is not None and str(now) == started


def first_child(pid: int) -> int:
    """Return a process's first child. ClusterFault if it has none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not children:
        raise ClusterFault(f"process {pid} has no child")
    return int(children[0])


def cgroup_hierarchies() -> list[Path]:
    """Return the one hierarchy of cgroup v2, or each of v1's."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [hierarchy for hierarchy in CGROUPS.iterdir() if (hierarchy / "cgroup.procs").exists()]


def make_cgroup(name: str) -> None:
    """Make a cgroup, and those above it, in every hierarchy."""
    for hierarchy in cgroup_hierarchies():
        cgroup = hierarchy
        for part in name.split("/"):
            parent, cgroup = cgroup, cgroup / part
            cgroup.mkdir(exist_ok=True)
            if hierarchy.name == "cpuset":  # v1 leaves these empty, and nothing could run in it
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    (cgroup / setting).write_text((parent / setting).read_text())


def cgroups(pattern: str) -> set[str]:
    """Return the names, at the top, of cgroups that match a pattern, in whichever hierarchy."""
    return {cgroup.name for hierarchy in cgroup_hierarchies() for cgroup in hierarchy.glob(pattern) if cgroup.is_dir()}


def remove_cgroup(name: str) -> None:
    """Remove a cgroup and those below it, once their processes are gone."""
    for hierarchy in cgroup_hierarchies():
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            wait_until(partial(_is_removed, Path(folder)), f"{folder} to be empty")


def processes_in(name: str, leaf: str) -> list[int]:
    """Return the PIDs in the cgroup called `leaf` anywhere below another cgroup."""
    hierarchy = next(each for each in cgroup_hierarchies() if (each / name).is_dir())
    return [int(pid) for file in (hierarchy / name).rglob(f"{leaf}/cgroup.procs") for pid in file.read_text().split()]


def _is_removed(folder: Path) -> bool:
    folder.rmdir()
    return True


@contextmanager
def network_of(namespace: Path) -> Iterator[None]:
    """Have the calling thread, and the threads and processes it starts meanwhile, in another network namespace."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        move_into(namespace)
        yield
    finally:
        _set_namespace(before)
        os.close(before)


def move_into(namespace: Path) -> None:
    """Move the calling thread, and what it starts from now on, into a network namespace. ClusterFault if refused."""
    with namespace.open() as opened:
        _set_namespace(opened.fileno())


def _set_namespace(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0):
        raise ClusterFault(f"cannot change the network namespace: {os.strerror(ctypes.get_errno())}")
