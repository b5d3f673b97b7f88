"""What the cluster is built of, and what it says where it cannot be built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from decodepool_cluster import images, tools
from decodepool_cluster.__main__ import app
from decodepool_cluster.linux import ClusterFault, wait_until
from typer.testing import CliRunner


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pinned modules, to be changed."""
    copy = shutil.copytree(tools.MODULES, tmp_path / "go")
    monkeypatch.setattr(tools, "MODULES", copy)
    return copy


@pytest.mark.parametrize("file", ["kubernetes/go.mod", "tools/go.sum", "tools/coredns/main.go"])
def test_another_pin_is_another_folder_of_tools(file: str, pinned: Path) -> None:
    before = tools.tools_folder()
    assert tools.tools_folder() == before
    with (pinned / file).open("a") as opened:
        opened.write("\n")
    assert tools.tools_folder() != before


def test_kubernetes_is_told_the_version_that_is_pinned() -> None:
    version = tools.modules()[0].linker_flags
    assert "gitVersion=v1." in version
    assert f"k8s.io/kubernetes {version.split('gitVersion=')[1].split()[0]}" in (
        tools.MODULES / "kubernetes" / "go.mod"
    ).read_text().replace("\t", "")


REASONS = {
    "not root": ({"geteuid": 1000}, "needs root"),
    "a container's root": ({"may": False}, "needs namespaces and cgroups"),
    "no Go": ({"built": False, "which": None}, "Go 1.21 or newer is needed"),
    "not Debian": ({"missing": ["runc"], "which": None}, "needs runc"),
    "all there": ({}, None),
    "built already, so no Go is needed": ({"which": None}, None),
}


@pytest.mark.parametrize(("given", "reason"), REASONS.values(), ids=REASONS)
def test_what_is_missing_is_said_in_a_line(
    given: dict[str, object], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {"geteuid": 0, "may": True, "built": True, "missing": [], "which": "/usr/bin/it", **given}
    monkeypatch.setattr(os, "geteuid", lambda: machine["geteuid"])
    monkeypatch.setattr(tools, "may_make_namespaces", lambda: machine["may"])
    monkeypatch.setattr(tools, "are_built", lambda: machine["built"])
    monkeypatch.setattr(tools, "missing_packages", lambda: machine["missing"])
    monkeypatch.setattr(shutil, "which", lambda _: machine["which"])
    told = tools.missing_for_building()
    assert told is None if reason is None else told and reason in told and "\n" not in told


def test_installing_starts_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(tools, "SERVICE_POLICY", policy)
    with tools.no_service_started():
        assert subprocess.run([policy], check=False).returncode == 101
    assert not policy.exists()


def test_a_policy_of_the_machines_own_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("its own")
    monkeypatch.setattr(tools, "SERVICE_POLICY", policy)
    with tools.no_service_started():
        assert policy.read_text() == "its own"
    assert policy.read_text() == "its own"


@pytest.mark.parametrize("verb", ["up", "down", "start", "stop"])
def test_without_root_nothing_is_tried(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = CliRunner().invoke(app, ["--home", str(tmp_path / "home"), verb])
    assert isinstance(done.exception, ClusterFault)
    assert "needs root" in str(done.exception)
    assert not (tmp_path / "home").exists()


def test_building_where_possible_ends_well_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = CliRunner().invoke(app, ["build", "--where-possible"])
    assert done.exit_code == 0
    assert "needs root" in done.stderr


def test_images_change_with_what_they_are_made_of_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "repository"
    for room in images.ROOMS:
        (source / room).mkdir(parents=True)
    for file in (*images.INPUTS, "sizing/code.py", "CHANGELOG.md"):
        (source / file).write_text(file)
    monkeypatch.setattr(images, "SOURCE", source)
    before = images.input_digest()
    (source / "CHANGELOG.md").write_text("more")
    (source / "sizing" / "__pycache__").mkdir()
    (source / "sizing" / "__pycache__" / "code.pyc").touch()
    assert images.input_digest() == before
    (source / "sizing" / "code.py").write_text("more")
    assert images.input_digest() != before


def test_a_wait_that_ends_in_vain_says_for_what_and_why() -> None:
    def never() -> bool:
        raise OSError("connection refused")

    with pytest.raises(ClusterFault, match="waited 0 s for the end of time: connection refused"):
        wait_until(never, "the end of time", 0)
