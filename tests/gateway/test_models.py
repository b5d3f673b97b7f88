"""Real models behind the gateway: `decodepool serve --worker-tag-of`, twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.cli.models import write_talking
from tests.cli.processes import free_port
from tests.gateway.processes import PoolProcess, WorkerProcess, answers, gateway, spawn, until

pytestmark = pytest.mark.slow


@contextmanager
def served(model: Path, folder: Path, *options: object, names: Sequence[str] = ("a", "b")) -> Iterator[PoolProcess]:
    """Serve a model with two workers behind a gateway."""
    with ExitStack() as stack:
        workers = [started(model, folder, name, *options) for name in names]
        pool = gateway(folder, workers)
        for process in (*workers, pool):
            stack.callback(process.kill)
        until(lambda: answers(pool, "/healthz") and pool.ready_workers == len(workers), 180)
        yield pool


def started(model: Path, folder: Path, name: str, *options: object) -> WorkerProcess:
    port = free_port()
    words = ("decodepool_cli", "serve", model, f"--port={port}", f"--worker-tag-of={name}", *options)
    popen, log = spawn(folder, name, *words)
    return WorkerProcess(f"http://127.0.0.1:{port}", port, popen, log, name)


def test_a_model_draws_the_same_on_whichever_worker(tmp_path: Path) -> None:
    """64 streams, 32 a worker, all of one prompt and seed: one stream."""
    model = write_talking(tmp_path / "tiny.gguf")
    found: list[list[dict[str, Any]]] = []
    with served(model, tmp_path, "--context=256", "--sessions=32") as pool:
        body = {"tokens": [1, 2, 3], "seed": 5}
        sessions = [pool.post("/v1/sessions", body, 201)["id"] for _ in range(64)]
        assert sorted(pool.worker_of(session).name for session in sessions) == ["a"] * 32 + ["b"] * 32

        def stream(session: str) -> None:
            found.append(pool.stream(session, temperature=1, max_tokens=200, ignore_eos=True))

        threads = [threading.Thread(target=stream, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    drawn = [[event["data"]["token"] for event in events[:-1]] for events in found]
    assert len(drawn[0]) == 200
    assert drawn == [drawn[0]] * 64
    assert {events[-1]["event"] for events in found} == {"done"}


@pytest.mark.model
def test_smollm2_answers_the_openai_client_through_the_gateway(smollm2: Path, tmp_path: Path) -> None:
    with served(smollm2, tmp_path, "--context=256", "--sessions=2", names=["a"]) as pool:
        client = openai.OpenAI(base_url=pool.url + "/v1", api_key="none", max_retries=0)
        chunks = client.chat.completions.create(
            model=smollm2.stem,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=16,
            stream=True,
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of France is Paris."
