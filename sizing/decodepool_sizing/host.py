"""This machine's memory: what a CPU worker started now could have."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""Limit and use, cgroup v2 and v1."""


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
