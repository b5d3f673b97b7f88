"""The real model behind the real server: no neighbour is disturbed, and health answers while everything is busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.cli.processes import Running, call, free_port

pytestmark = [pytest.mark.model, pytest.mark.slow]

SESSIONS = 8
PROMPT = "The capital of France is"


class Worker:
    """`decodepool serve` on the demo model."""

    def __init__(self, folder: Path, model: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        options = ["--context=1024", f"--sessions={SESSIONS}", f"--port={port}", "--drain-timeout=1", "--name=smollm2"]
        self.running = Running(folder, "serve", model, *options)
        self.running.says("ready")

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        return call(self.url + path, body)

    def create(self, **body: Any) -> str:
        status, made = self.post("/v1/sessions", body)
        assert status == 201, made
        session_id: str = made["id"]
        return session_id

    def neighbour(self, tokens: int = 100) -> list[int]:
        """A sampled session's tokens."""
        session = self.create(prompt=PROMPT, seed=11, temperature=0.8)
        status, answer = self.post(f"/v1/sessions/{session}/decode", {"max_tokens": tokens, "ignore_eos": True})
        assert status == 200, answer
        self.close(session)
        drawn: list[int] = answer["tokens"]
        return drawn

    def close(self, session: str) -> None:
        call(f"{self.url}/v1/sessions/{session}", method="DELETE")


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Worker]:
    made = Worker(tmp_path_factory.mktemp("worker"), smollm2)
    yield made
    made.running.signal()
    assert made.running.end() == 0


def hostile_bodies(worker: Worker) -> None:
    """What `test_bodies` refuses, over and over, and what is too much."""
    for body in (
        {"tokens": [49152]},
        {"tokens": [1, 10**9]},
        {"tokens": [1] * 1025},
        {"prompt": "a " * 20_000},
        {"messages": [{"role": "user", "content": "x" * 50_000}]},
        {"tokens": [1], "temperature": -1},
        {"tokens": [1], "logit_bias": {"49152": 1}},
    ):
        status, answer = worker.post("/v1/sessions", body)
        assert (status, bool(answer["error"]["message"])) == (400, True)


def crowded_sessions(worker: Worker) -> None:
    """Prefills, forks, ends of context, extreme temperatures, refused appends."""
    for temperature in (0.0, 1e-6, 1e6):
        session = worker.create(tokens=list(range(100, 400)), context_tokens=320, temperature=temperature)
        assert worker.post(f"/v1/sessions/{session}/append", {"tokens": [5] * 30})[0] == 400
        _, made = worker.post(f"/v1/sessions/{session}/fork", {"at": 250})
        _, answer = worker.post(f"/v1/sessions/{session}/decode", {"ignore_eos": True})
        assert (len(answer["tokens"]), answer["finish_reason"]) == (20, "length")
        worker.close(session)
        worker.close(made["sessions"][0]["id"])


def answers_in_openais_words(worker: Worker) -> None:
    with openai.OpenAI(base_url=worker.url + "/v1", api_key="none", max_retries=0) as client:
        for chunk in client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Count to ten."}], max_tokens=12, n=3, stream=True
        ):
            assert chunk.system_fingerprint


@pytest.mark.parametrize("trouble", [hostile_bodies, crowded_sessions, answers_in_openais_words])
def test_a_neighbour_draws_what_it_draws_alone(worker: Worker, trouble: Callable[[Worker], None]) -> None:
    alone = worker.neighbour()
    answers: list[list[int]] = []
    process = worker.running.process.pid
    beside = threading.Thread(target=lambda: answers.append(worker.neighbour()))
    beside.start()
    while beside.is_alive():
        trouble(worker)
    beside.join()
    assert answers == [alone]
    assert worker.running.process.pid == process
    assert call(worker.url + "/v1/capacity")[1]["sessions"]["active"] == 0


def test_health_answers_within_a_second_whatever_is_asked(worker: Worker) -> None:
    def decode() -> None:
        session = worker.create(tokens=list(range(200, 700)))
        worker.post(f"/v1/sessions/{session}/decode", {"max_tokens": 30, "top_logprobs": 20, "top_p": 0.9})
        worker.close(session)

    work = [threading.Thread(target=decode) for _ in range(SESSIONS)]
    work += [threading.Thread(target=worker.post, args=("/tokenize", {"text": "a" * 200_000}))]
    work += [threading.Thread(target=worker.post, args=("/v1/sessions", {"tokens": [1] * 1_000_000}))]
    for thread in work:
        thread.start()
    slowest = 0.0
    while any(thread.is_alive() for thread in work):
        began = time.monotonic()
        call(worker.url + "/healthz")
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.05)
    assert slowest < 1
