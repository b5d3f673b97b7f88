"""This machine's memory and cores: what a CPU worker started now could have."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""Limit and use, cgroup v2 and v1."""
_CORE_QUOTAS = (
    (Path("/sys/fs/cgroup/cpu.max"),),
    (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")),
)
"""Microseconds of CPU time a period, and the period: in one file in cgroup v2, in two in v1."""


def available_memory_bytes() -> int:
    """Return the memory free for a new process, by the kernel and by this container's limit. OSError where neither is
    known.
    """
    room = [_meminfo_available(_MEMINFO.read_text())]
    for limit, used in _CGROUPS:
        if limit.is_file() and used.is_file():
            room.append(_group_room(limit.read_text(), used.read_text(), room[0]))
    return max(0, min(room))


def _meminfo_available(text: str) -> int:
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/meminfo has no MemAvailable")


def _group_room(limit: str, used: str, unlimited: int) -> int:
    if not limit.strip().isdigit():
        return unlimited
    return int(limit) - int(used)


def usable_cores() -> int:
    """Return the cores this process may use: those it may run on, and no more than this container's share of time.
    A thread more than that would be stopped in the middle of a step, while the others wait for it.
    """
    cores = [len(os.sched_getaffinity(0))]
    for files in _CORE_QUOTAS:
        if all(file.is_file() for file in files):
            cores.append(_quota_cores(" ".join(file.read_text() for file in files), cores[0]))
    return min(cores)


def _quota_cores(quota_and_period: str, unlimited: int) -> int:
    quota, period = quota_and_period.split()
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return unlimited  # "max" in v2, -1 in v1
    return max(1, -(-int(quota) // int(period)))
