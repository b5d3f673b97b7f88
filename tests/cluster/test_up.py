"""`make cluster` and `make cluster-down`, as a person runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from decodepool_cluster import tools
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import cgroup_hierarchies

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]


def command(home: Path, verb: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "decodepool_cluster", "--home", str(home), verb],
        env={**os.environ, "PORT": "18321"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def traces(home: Path) -> dict[str, list[str]]:
    """Whatever on this machine tells of a cluster in that folder."""
    cluster = Cluster(home, tools.tools_folder())
    return {
        "processes": [line for line in command_lines() if str(home) in line],
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(home) in line],
        "cgroups": [str(each) for each in cgroup_hierarchies() if (each / cluster.cgroup).exists()],
        "files": [str(each) for each in home.parent.glob(f"{home.name}*")],
    }


def command_lines() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            yield file.read_bytes().replace(b"\0", b" ").decode()


@dataclass(frozen=True)
class Up:
    home: Path
    output: str


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    if reason := tools.missing_for_building():
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("up") / ".cluster"
    try:
        yield Up(home, command(home, "up"))
    finally:
        command(home, "down")


def test_it_shows_a_ready_pool_and_its_answer(up: Up) -> None:
    assert re.search(r"smollm2 +SmolLM2-135M-Instruct.Q4_1 +\d+/8 +1/1 +2048", up.output)
    assert "The capital of France is Paris." in up.output


def test_the_live_page_and_the_api_are_on_this_machines_localhost(up: Up) -> None:
    with urllib.request.urlopen("http://127.0.0.1:18321/", timeout=10) as page:
        assert "text/html" in page.headers["content-type"]
    assert "base_url=http://127.0.0.1:18321/v1" in up.output


def test_exec_works_inside_with_names_and_kubectl(up: Up) -> None:
    def inside(*words: str) -> str:
        return subprocess.run([up.home / "exec", *words], capture_output=True, text=True, check=True).stdout

    endpoint = inside("kubectl", "get", "decodepool", "smollm2", "-o", "jsonpath={.status.endpoint}")
    read = f"import urllib.request; print(urllib.request.urlopen('{endpoint}/v1/models').status)"
    assert inside(sys.executable, "-c", read) == "200\n"


def test_down_leaves_no_trace(up: Up) -> None:
    assert all(traces(up.home).values()), "what is looked for is there while it runs"
    command(up.home, "down")
    assert traces(up.home) == {"processes": [], "mounts": [], "cgroups": [], "files": []}
