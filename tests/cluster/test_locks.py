"""Two commands at once: over one cluster's folder, and over the archives of images."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from decodepool_cluster import images, linux, locks, tools
from decodepool_cluster.__main__ import app
from decodepool_cluster.linux import ClusterFault, wait_until
from typer.testing import CliRunner


def test_a_folder_that_somebody_works_on_is_refused_at_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with (
        locks.alone_at_once(home),
        pytest.raises(ClusterFault, match=f"another command starts or stops {home}"),
        locks.alone_at_once(home),
    ):
        pass
    with locks.alone_at_once(home):
        pass
    assert not list(tmp_path.iterdir()), "a lock is no trace"


@pytest.mark.parametrize("verb", ["up", "down", "start"])
def test_a_second_command_does_nothing(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tools, "build", lambda: pytest.fail("it goes on"))
    home = tmp_path / "home"
    with locks.alone_at_once(home):
        done = CliRunner().invoke(app, ["--home", str(home), verb])
    assert isinstance(done.exception, ClusterFault)
    assert "\n" not in str(done.exception)
    assert not home.exists()


HOLDS = """
import sys, time
from pathlib import Path
from decodepool_cluster.locks import alone_at_once
with alone_at_once(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_command_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(home)], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"held\n"
        with pytest.raises(ClusterFault), locks.alone_at_once(home):
            pass
        killed.kill()
    with locks.alone_at_once(home):
        pass


def test_a_lock_that_was_removed_while_it_was_taken_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening a lock's file and holding it the one before may end: two would hold a lock each."""
    opened, took = tmp_path / "home.lock", locks._took
    ends = iter([opened.unlink])
    monkeypatch.setattr(locks, "_took", lambda lock: (next(ends, lambda: None)(), took(lock))[1])
    with locks.alone_at_once(tmp_path / "home"):
        assert opened.exists()


def archives(folder: Path, count: int) -> list[Path]:
    """Archives of as many sources, the oldest first."""
    paths = [folder / str(number) / "all.tar" for number in range(count)]
    for age, path in enumerate(reversed(paths)):
        path.parent.mkdir()
        path.touch()
        os.utime(path, (0, 1_700_000_000 - age))
    return paths


def test_an_archive_that_is_being_loaded_is_not_forgotten(tmp_path: Path) -> None:
    oldest, old, kept = archives(tmp_path, 3)
    with locks.in_use(oldest), locks.in_use(oldest):
        images.forget_old([oldest, old, kept])
        assert (oldest.exists(), old.exists(), kept.exists()) == (True, False, True)
    images.forget_old([oldest, kept])
    assert (oldest.exists(), kept.exists()) == (False, True)


def test_archives_are_held_while_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "cache_folder", lambda _: tmp_path)
    monkeypatch.setattr(images, "_build", lambda _, path: (path.parent.mkdir(parents=True), path.touch()))
    with images.archive("operator") as path:
        assert locks.is_in_use(path)
    assert not locks.is_in_use(path)


BUILDS = """
from decodepool_cluster import images, linux
linux.run([*images.PRIVATE, "sh", "-c", "sleep 671 & sleep 672"])
"""


@pytest.fixture
def root() -> None:
    if reason := tools.missing_for_building():
        pytest.skip(reason)


def sleepers() -> list[bytes]:
    lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    return [line for line in lines if line.startswith((b"sleep\x00671", b"sleep\x00672"))]


@pytest.mark.cluster
@pytest.mark.usefixtures("root")
def test_a_build_ends_with_the_command_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", BUILDS]) as command:
        wait_until(lambda: len(sleepers()) == 2, "the build to run")
        command.kill()
    wait_until(lambda: not sleepers(), "its processes to end")


@pytest.mark.cluster
@pytest.mark.usefixtures("root")
def test_a_build_cleans_up_after_those_that_are_dead_alone() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        dead = f"{images.CGROUP}{linux.mark_of(process.pid)}"
        process.kill()
    living = f"{images.CGROUP}{linux.mark_of(os.getpid())}"
    linux.make_cgroup(f"{dead}/docker")
    linux.make_cgroup(living)
    try:
        images.clean_up_after_killed_builds()
        found = linux.cgroups(f"{images.CGROUP}*")
        assert living in found
        assert dead not in found
    finally:
        linux.remove_cgroup(living)
