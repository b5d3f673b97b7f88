from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from decodepool_cli import supervisor
from decodepool_cli.listeners import listeners
from decodepool_cli.run import gateway_command, worker_arguments
from decodepool_sizing.manifest import parse_manifest
from decodepool_web.sockets import listening_socket, url_of

from tests.cli.conftest import Call
from tests.cli.processes import START_SECONDS, Running, call, free_port, is_alive, until
from tests.sizing.gguf_bytes import tiny

Start = Callable[..., Running]


def pool(file: Path | str, /, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "decodepool.dev/v1alpha1",
        "kind": "DecodePool",
        "metadata": {"name": "small"},
        "spec": {
            "model": {"source": {"hostPath": {"path": str(file)}}},
            "contextTokens": 64,
            "sessionsPerWorker": 2,
            "accelerator": {"type": "cpu"},
            "drain": {"timeoutSeconds": 5},
            **spec,
        },
    }


@pytest.fixture
def untold(tmp_path: Path) -> Path:
    path = tmp_path / "untold.gguf"
    path.write_bytes(tiny({"tokenizer.ggml.model": "none", "tokenizer.ggml.tokens": None}))
    return path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[dict[str, Any], int], Running]]:
    made: list[Running] = []

    def run(manifest: dict[str, Any], port: int) -> Running:
        path = tmp_path / "pool.yaml"
        path.write_text(yaml.safe_dump(manifest))
        made.append(Running(tmp_path, "run", path, f"--port={port}"))
        return made[-1]

    yield run
    for each in made:
        each.process.kill()
        each.process.wait()


def neighbouring_ports() -> int:
    """The first of three free ports."""
    while True:
        port = free_port()
        with suppress(OSError), ExitStack() as held:
            for each in range(port, port + 3):
                held.enter_context(listening_socket("127.0.0.1", each))
            return port


def ready(port: int) -> bool:
    return call(f"http://127.0.0.1:{port}/readyz")[0] == 200


@pytest.mark.slow
def test_a_dead_worker_is_started_again_and_all_end_together(start: Start, untold: Path) -> None:
    port = neighbouring_ports()
    running = start(pool(untold, replicas=2), port)
    until(lambda: ready(port) and ready(port + 1) and ready(port + 2))
    running.says("worker 1) is ready")
    workers = running.children()
    assert len(workers) == 3
    os.kill(workers[0], signal.SIGKILL)
    until(lambda: not is_alive(workers[0]))
    with pytest.raises(OSError, match="in use"):
        listening_socket("127.0.0.1", port + 1)
    assert call(f"http://127.0.0.1:{port + 1}/healthz")[0] == 200  # who asks meanwhile waits for the next worker
    running.says("SIGKILL: starting it again")
    until(lambda: ready(port + 1) and ready(port + 2) and len(running.children()) == 3)
    workers = running.children()
    running.signal()
    assert running.end() == 0
    assert "Ctrl-C again ends now" in running.err.read_text()
    assert not any(map(is_alive, workers))


@pytest.mark.slow
def test_several_workers_have_one_endpoint(start: Start, untold: Path) -> None:
    """A gateway at the pool's port, which finds sessions on either worker and is started again when it dies."""
    port = neighbouring_ports()
    pool_url = f"http://127.0.0.1:{port}"
    running = start(pool(untold, replicas=2), port)
    running.says(f"small is ready at {pool_url}/v1")
    until(lambda: call(pool_url + "/v1/capacity")[1]["sessions"]["free"] == 4)
    assert call(pool_url + "/v1/models")[1]["data"][0]["id"] == "small"
    made = [call(pool_url + "/v1/sessions", {"tokens": [1, 2]})[1]["id"] for _ in range(4)]
    for each in made:
        assert call(f"{pool_url}/v1/sessions/{each}")[0] == 200
    on = [[session["id"] for session in call(f"http://127.0.0.1:{port + i}/v1/sessions")[1]["data"]] for i in (1, 2)]
    assert [len(ids) for ids in on] == [2, 2]
    (gateway,) = [each for each in running.children() if "decodepool_gateway" in psutil.Process(each).cmdline()]
    os.kill(gateway, signal.SIGKILL)
    running.says("gateway ended with signal SIGKILL: starting it again")
    until(lambda: call(f"{pool_url}/v1/sessions/{made[0]}")[0] == 200)
    processes = running.children()
    running.signal()
    assert running.end() == 0
    assert not any(map(is_alive, processes))


@pytest.mark.slow
def test_nothing_outlives_a_killed_parent(start: Start, untold: Path) -> None:
    port = neighbouring_ports()
    running = start(pool(untold, replicas=2), port)
    until(lambda: ready(port))
    processes = running.children()
    assert len(processes) == 3
    running.signal(signal.SIGKILL)
    running.end()
    until(lambda: not any(map(is_alive, processes)), 5)


@pytest.mark.slow
def test_a_worker_that_can_never_start_ends_the_run(start: Start, untold: Path) -> None:
    """Nothing is wrong with the header; the weights hold a NaN, which the worker alone sees."""
    untold.write_bytes(
        tiny(
            {"tokenizer.ggml.model": "none", "tokenizer.ggml.tokens": None},
            edit={"output_norm.weight": {"data": b"\x00\x00\xc0\x7f" * 64}},
        )
    )
    running = start(pool(untold), free_port())
    assert running.end(120) == 2
    assert "output_norm.weight" in running.err.read_text()


HTTP = {"model": {"source": {"http": {"url": "http://127.0.0.1:9/m.gguf", "secretRef": {"name": "token"}}}}}
PVC = {"model": {"source": {"pvc": {"claimName": "models", "path": "m.gguf"}}}}
IMAGE = {"model": {"source": {"image": {"reference": "models:1", "path": "/m.gguf"}}}}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"accelerator": {"type": "nvidia"}}, "spec.accelerator.type: nvidia: `run` serves on the CPU alone"),
        (PVC, "spec.model.source.pvc"),
        (IMAGE, "spec.model.source.image"),
        (HTTP, "spec.model.source.http.secretRef"),
        ({"auth": {"secretRef": {"name": "keys"}}}, "spec.auth.secretRef"),
        ({"contextTokens": 0}, "spec.contextTokens"),
        ({"contextTokens": 10**6}, "256"),
        ({"replicas": 1.5}, "spec.replicas"),
        ({"tempurature": 1}, "spec.tempurature"),
        ({"sessionsPerWorker": "4"}, "spec.sessionsPerWorker"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_run_is_refused_by_its_path(
    call: Call, untold: Path, tmp_path: Path, spec: Any, named: str
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(pool(untold, **spec)))
    done = call("run", path)
    assert done.code == 2
    assert named in done.err
    assert done.err.count("\n") == 1


def test_a_plan_that_cannot_fit_is_refused_with_its_numbers(call: Call, untold: Path, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(pool(untold, accelerator={"type": "cpu", "memory": "1Ki"})))
    done = call("run", path)
    assert done.code == 1
    assert "1105480 bytes" in done.err


@pytest.mark.parametrize(("spec", "word"), [({"replicas": 0}, "0 replicas"), ({"suspend": True}, "suspended")])
def test_an_empty_pool_has_nothing_to_run(call: Call, untold: Path, tmp_path: Path, spec: Any, word: str) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(pool(untold, **spec)))
    done = call("run", path)
    assert (done.code, word in done.out) == (0, True)


def test_what_a_cluster_alone_heeds_is_told(call: Call, untold: Path, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(pool(untold, suspend=True, autoscaling={"maxReplicas": 2})))
    assert "spec.autoscaling is for a cluster: here, 1 worker runs\n" in call("run", path).out


def test_a_missing_manifest_is_one_line(call: Call, tmp_path: Path) -> None:
    done = call("run", tmp_path / "none.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"decodepool: {tmp_path / 'none.yaml'}: no such file or directory\n"


def test_every_field_that_a_worker_heeds_becomes_an_argument() -> None:
    manifest = parse_manifest(
        pool("/m.gguf", kvType="q8_0", cacheReserve="1Gi", accelerator={"type": "cpu", "memory": "4Gi"})
    )
    assert worker_arguments(manifest, Path("/m.gguf")) == [
        "/m.gguf",
        "--context=64",
        "--sessions=2",
        "--kv-type=q8_0",
        f"--memory={4 << 30}",
        f"--cache-reserve={1 << 30}",
        "--drain-timeout=5",
        "--name=small",
    ]


def test_every_field_that_a_gateway_heeds_becomes_an_argument() -> None:
    manifest = parse_manifest(pool("/m.gguf", gateway={"queueSeconds": 90}))
    command = gateway_command(manifest, [("a", "http://127.0.0.1:1")], log_json=True)
    assert {"--pool=small", "--queue-timeout=90", "--drain-timeout=5", "--worker=a=http://127.0.0.1:1"} < set(command)


def test_a_port_that_is_not_free_is_told_before_anything_starts(
    call: Call, untold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may belong to a server that answers what a worker would."""
    monkeypatch.setattr(supervisor.Supervisor, "run", lambda _: pytest.fail("a worker was started"))
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(pool(untold, replicas=2)))
    port = neighbouring_ports()
    with listening_socket("127.0.0.1", port + 1):
        done = call("run", path, f"--port={port}")
    assert done.code == 2
    assert done.err == f"decodepool: cannot listen on 127.0.0.1:{port + 1}: Address already in use\n"
    listening_socket("127.0.0.1", port).close()  # what was held of the pool's ports is free again


@pytest.mark.slow
def test_a_worker_that_ends_again_and_again_ends_the_pool_with_its_reason(
    untold: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """It cannot load, and it takes longer to find that out than a worker must be ready to count as steady."""
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "STEADY_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "QUICK_ENDS", 3)
    with listeners("127.0.0.1", 0, 1) as (listener,):
        command = ("decodepool_cli", "serve", str(untold), "--context=64", "--memory=1MiB")
        spec = supervisor.ProcessSpec("worker 7", listener, url_of(listener), command)
        running = supervisor.Supervisor([spec], 1.0, lambda _: pytest.fail("it is not ready")).run()
        assert asyncio.run(asyncio.wait_for(running, START_SECONDS)) == 1
    assert caplog.text.count("starting it again") == 2
    assert "worker 7 ended 3 times in a row, with exit code 1: giving up" in caplog.text
    reason = "not even the weights and workspace fit"
    assert reason in caplog.messages[-1]
    assert capfd.readouterr().err.count(reason) >= 3
