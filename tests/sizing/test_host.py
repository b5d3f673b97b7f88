"""Memory and cores that a worker may use: the machine's, and no more than its container's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from decodepool_sizing import host
from decodepool_sizing.host import available_memory_bytes, usable_cores

CORES = 8
AVAILABLE_GIB = 6
V2 = {
    "no limit": ("max 100000\n", CORES),
    "two cores": ("200000 100000\n", 2),
    "a core and a half needs two": ("150000 100000\n", 2),
    "a tenth of one is one": ("10000 100000\n", 1),
    "a period of its own": ("75000 25000\n", 3),
    "more than the machine has": ("6400000 100000\n", CORES),
    "a period of nothing": ("100000 0\n", CORES),
}
V1 = {
    "no limit": ("-1\n", "100000\n", CORES),
    "two cores": ("200000\n", "100000\n", 2),
    "a core and a half needs two": ("150000\n", "100000\n", 2),
}


def gib(amount: float) -> int:
    return round(amount * 2**30)


def v2_uses(*, inactive: float = 0, active: float = 0) -> str:
    return (
        f"anon 12345\nfile {gib(9)}\ninactive_file {gib(inactive)}\nactive_file {gib(active)}\nworkingset_refault 7\n"
    )


def v1_uses(*, inactive: float = 0, active: float = 0) -> str:
    own = f"cache {gib(9)}\ninactive_file 4096\nactive_file 4096\nhierarchical_memory_limit {gib(9)}\n"
    return own + f"total_inactive_file {gib(inactive)}\ntotal_active_file {gib(active)}\n"


V2_MEMORY = {
    "no limit": ("max", 1, v2_uses(), AVAILABLE_GIB),
    "a limit above what is free": (gib(64), 1, v2_uses(), AVAILABLE_GIB),
    "no cache": (gib(4), 1.5, v2_uses(), 2.5),
    "a file read once": (gib(4), 2.25, v2_uses(inactive=2), 3.75),
    "a file read twice": (gib(4), 2.25, v2_uses(active=2), 3.75),
    "nearly all cache": (gib(4), 4, v2_uses(inactive=1, active=2.5), 3.5),
    "more cache than was used a moment before": (gib(4), 1, v2_uses(inactive=2), 4),
    "over its limit": (gib(1), 1.5, v2_uses(), 0),
    "a sandbox that does not say what is used": (gib(4), 1.5, None, 2.5),
}
V1_MEMORY = {
    "no limit": (9223372036854771712, 1, v1_uses(), AVAILABLE_GIB),
    "no cache": (gib(4), 1.5, v1_uses(), 2.5),
    "groups below count": (gib(4), 2.25, v1_uses(inactive=1, active=1), 3.75),
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of 8 cores with 6 GiB free, whose control groups lie in `tmp_path`."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {AVAILABLE_GIB << 20} kB\n")
    monkeypatch.setattr(host, "_MEMINFO", tmp_path / "meminfo")
    groups = [
        replace(
            group, limit=tmp_path / group.limit.name, used=tmp_path / group.used.name, uses=tmp_path / "memory.stat"
        )
        for group in host._MEMORY_GROUPS
    ]
    monkeypatch.setattr(host, "_MEMORY_GROUPS", groups)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)))
    quotas = (tmp_path / "cpu.max",), (tmp_path / "cpu.cfs_quota_us", tmp_path / "cpu.cfs_period_us")
    monkeypatch.setattr(host, "_CORE_QUOTAS", quotas)
    return tmp_path


@pytest.mark.parametrize(("limit", "used", "uses", "available"), V2_MEMORY.values(), ids=list(V2_MEMORY))
def test_memory_of_cgroup_v2(machine: Path, limit: object, used: float, uses: str | None, available: float) -> None:
    (machine / "memory.max").write_text(f"{limit}\n")
    (machine / "memory.current").write_text(f"{gib(used)}\n")
    if uses is not None:
        (machine / "memory.stat").write_text(uses)
    assert available_memory_bytes() == gib(available)


@pytest.mark.parametrize(("limit", "used", "uses", "available"), V1_MEMORY.values(), ids=list(V1_MEMORY))
def test_memory_of_cgroup_v1(machine: Path, limit: int, used: float, uses: str, available: float) -> None:
    (machine / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (machine / "memory.usage_in_bytes").write_text(f"{gib(used)}\n")
    (machine / "memory.stat").write_text(uses)
    assert available_memory_bytes() == gib(available)


def test_without_groups_what_the_kernel_has_available_counts() -> None:
    assert available_memory_bytes() == gib(AVAILABLE_GIB)


@pytest.mark.parametrize(("text", "cores"), V2.values(), ids=list(V2))
def test_quota_of_cgroup_v2(machine: Path, text: str, cores: int) -> None:
    (machine / "cpu.max").write_text(text)
    assert usable_cores() == cores


@pytest.mark.parametrize(("quota", "period", "cores"), V1.values(), ids=list(V1))
def test_quota_of_cgroup_v1(machine: Path, quota: str, period: str, cores: int) -> None:
    (machine / "cpu.cfs_quota_us").write_text(quota)
    (machine / "cpu.cfs_period_us").write_text(period)
    assert usable_cores() == cores


def test_without_groups_the_cores_that_it_may_run_on_count() -> None:
    assert usable_cores() == CORES


def test_fewer_cores_than_the_quota_allows(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "cpu.max").write_text("400000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    assert usable_cores() == 1
