"""This machine's memory and cores: what a CPU worker started now could have."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class _MemoryGroup:
    """Files of a container's control group: its limit, what is used, and what that is. There, `cache_prefix` begins the
    names of the file cache.
    """

    limit: Path
    used: Path
    uses: Path
    cache_prefix: str


_MEMORY_GROUPS = (
    _MemoryGroup(
        Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory.stat"), ""
    ),
    _MemoryGroup(
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.stat"),
        "total_",
    ),
)
"""Of cgroup v2 and v1."""
_CORE_QUOTAS = (
    (Path("/sys/fs/cgroup/cpu.max"),),
    (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")),
)
"""Microseconds of CPU time a period, and the period: in one file in cgroup v2, in two in v1."""


def available_memory_bytes() -> int:
    """Return the memory free for a new process, by the kernel and by this container's limit. Cached files are free, as
    the kernel gives them up before it refuses anything. OSError where neither is known.
    """
    room = [_meminfo_available(_MEMINFO.read_text())]
    for group in _MEMORY_GROUPS:
        if group.limit.is_file() and group.used.is_file():
            room.append(_group_room(group, room[0]))
    return max(0, min(room))


def _meminfo_available(text: str) -> int:
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/meminfo has no MemAvailable")


def _group_room(group: _MemoryGroup, unlimited: int) -> int:
    limit = group.limit.read_text().strip()
    if not limit.isdigit():
        return unlimited
    cached = _cached_bytes(group) if group.uses.is_file() else 0
    return int(limit) - max(0, int(group.used.read_text()) - cached)


def _cached_bytes(group: _MemoryGroup) -> int:
    """Return the bytes of files in memory, those read more than once (active) too."""
    uses = dict(line.split() for line in group.uses.read_text().splitlines())
    return sum(int(uses.get(f"{group.cache_prefix}{name}", 0)) for name in ("inactive_file", "active_file"))


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
