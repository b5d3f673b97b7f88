"""The examples do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from decodepool_sizing.manifest import load_manifest

from tests.cli.processes import Running, free_port
from tests.serving.live_server import live_worker

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL_FOLDER = "/var/lib/decodepool/models"


def run(name: str, *words: str, **variables: str) -> str:
    """Run an example and return what it printed."""
    command = [sys.executable, str(EXAMPLES / name), *words]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-800:]
    return done.stdout


@pytest.fixture
def pool(smollm2: Path, tmp_path: Path) -> Iterator[str]:
    """The example's pool on this machine; its URL."""
    port = free_port()
    mapped = f"--map={MODEL_FOLDER}={smollm2.parent}"
    running = Running(tmp_path, "run", EXAMPLES / "smollm2.yaml", mapped, "--port", port)
    running.says("is ready")
    yield f"http://127.0.0.1:{port}"
    running.signal()
    assert running.end(30) == 0


@pytest.mark.model
@pytest.mark.slow
def test_the_pool_of_the_example_serves_both_clients(pool: str) -> None:
    said = run("sessions.py", pool)
    assert "The capital of France is Paris." in said
    assert said.endswith("They drew the same tokens.\n")
    assert run("openai_chat.py", pool).endswith("it said the same.\n")


@pytest.mark.model
@pytest.mark.slow
def test_the_api_pages_commands_run_against_the_pool_as_written(pool: str) -> None:
    page = (EXAMPLES.parent / "docs" / "api.md").read_text()
    script = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).replace("curl ", "curl --fail-with-body ")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PORT": pool.rpartition(":")[2]},
    )
    assert done.returncode == 0, done.stderr + done.stdout[-500:]
    assert "The capital of France is Paris." in done.stdout


@pytest.mark.parametrize("name", ["sessions.py", "openai_chat.py"])
def test_the_clients_work_with_any_worker(name: str) -> None:
    with live_worker() as worker:
        assert "the same" in run(name, worker.url)


@pytest.mark.parametrize("name", ["sessions.py", "openai_chat.py"])
def test_the_clients_find_the_demo_by_its_port(name: str) -> None:
    with live_worker() as worker:
        assert "the same" in run(name, PORT=worker.url.rpartition(":")[2])


@pytest.mark.parametrize("name", ["sessions.py", "openai_chat.py"])
def test_the_clients_say_how_they_are_called(name: str) -> None:
    assert run(name, "--help", PORT="9000").startswith(f"usage: {name} [-h] [server]")


@pytest.mark.parametrize("name", ["sessions.py", "openai_chat.py"])
def test_a_port_that_is_none_is_told_by_the_clients(name: str) -> None:
    command, environment = [sys.executable, str(EXAMPLES / name)], {**os.environ, "PORT": "x"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr.endswith("argument server: invalid url value: 'http://127.0.0.1:x'\n")


@pytest.mark.parametrize("name", ["sessions.py", "openai_chat.py"])
def test_without_a_worker_the_clients_say_so_in_one_line(name: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), url], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"no worker answers at {url}: ")
    assert done.stderr.count("\n") == 1


def test_the_manifest_is_sound_and_names_the_file_that_is_fetched() -> None:
    pool = load_manifest((EXAMPLES / "smollm2.yaml").read_text())
    assert (pool.metadata.name, pool.metadata.namespace) == ("smollm2", "default")
    source = pool.spec.model.source.host_path
    assert source is not None
    assert Path(source.path).parent == Path(MODEL_FOLDER)
    assert f'FILE_NAME = "{Path(source.path).name}"' in (EXAMPLES / "fetch_smollm2.py").read_text()
