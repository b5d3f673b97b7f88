"""Cores that a worker may use: the machine's, and no more than its container's share of time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from decodepool_sizing import host
from decodepool_sizing.host import usable_cores

CORES = 8
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


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of 8 cores whose control groups lie in `tmp_path`."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)))
    quotas = (tmp_path / "cpu.max",), (tmp_path / "cpu.cfs_quota_us", tmp_path / "cpu.cfs_period_us")
    monkeypatch.setattr(host, "_CORE_QUOTAS", quotas)
    return tmp_path


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
