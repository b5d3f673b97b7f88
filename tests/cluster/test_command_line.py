"""What a person is told who uses the local cluster's commands, where it does not go as it should."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from decodepool_cluster import images, product, tools, up
from decodepool_cluster.__main__ import app
from decodepool_cluster.cluster import HOME, Cluster
from decodepool_cluster.linux import ClusterFault
from typer.testing import CliRunner


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("words", ["exec kubectl get nodes", "kill etcd", "revive etcd", "load"])
def test_what_needs_a_cluster_says_that_there_is_none(words: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = CliRunner().invoke(app, ["--home", str(home), *words.split()])
    assert isinstance(done.exception, ClusterFault)
    assert f"no cluster runs in {home}" in str(done.exception)
    assert not home.exists()


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("verb", ["kill", "revive"])
def test_a_part_that_there_is_not_is_answered_with_the_parts(verb: str) -> None:
    done = CliRunner().invoke(app, [verb, "etcetera"])
    assert done.exit_code == 2
    for part in ("etcd", "kube-proxy", "node-1"):
        assert part in done.stderr


@pytest.mark.parametrize(
    ("home", "here", "command", "end"),
    [
        (HOME, HOME.parent, ".cluster/exec", "make cluster-down"),
        (HOME, Path("/"), None, "make cluster-down"),
        (Path("/srv/my cluster"), Path("/usr"), "'/srv/my cluster/exec'", "--home '/srv/my cluster' down"),
        (Path("/srv/other"), Path("/usr"), "/srv/other/exec", "python -m decodepool_cluster --home /srv/other down"),
    ],
    ids=["make cluster", "from elsewhere", "a folder with a space", "another folder"],
)
def test_what_is_to_be_typed_next_can_be(
    home: Path, here: Path, command: str | None, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    cluster = Cluster(home, Path("/usr/bin"))
    assert Path(here, up.inside(cluster).strip("'")) == cluster.home / "exec"
    assert command is None or up.inside(cluster) == command
    assert up.ending(cluster).endswith(end)


class Interrupted:
    """A cluster whose start somebody ends by Ctrl-C."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def start(self) -> None:
        self.done.append("start")
        raise KeyboardInterrupt

    def stop(self) -> None:
        self.done.append("stop")


def test_an_interrupted_start_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "")
    monkeypatch.setattr(product, "model", lambda: tmp_path / "a.gguf")
    monkeypatch.setattr(tools, "build", lambda: tmp_path)
    monkeypatch.setattr(images, "archive", lambda *_: nullcontext(tmp_path / "images.tar"))
    cluster = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        up.up(cluster)  # type: ignore[arg-type]
    assert cluster.done == ["stop", "start", "stop"]
