"""Workers that die, come back and hang: what their clients are told, and that nobody else notices."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway import processes
from tests.gateway.processes import PoolProcess, running_pool, until
from tests.serving.byte_model import lone_tokens
from tests.serving.http_client import events

pytestmark = pytest.mark.slow  # each starts workers of its own, to do away with them

A_B_C = list(b"A B C")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolProcess]:
    with running_pool(tmp_path, each=["--step-seconds=0.02"], options=["--queue-timeout=2"]) as running:
        yield running


def on_both(pool: PoolProcess) -> dict[str, str]:
    """A session on each worker, by its name."""
    made = [pool.create("A B C") for _ in range(2)]
    return {pool.worker_of(session).name: session for session in made}


def test_a_worker_that_is_killed_ends_its_streams_and_nobody_elses(pool: PoolProcess) -> None:
    sessions, streamed = on_both(pool), {}

    def stream(name: str) -> None:
        body = {"temperature": 0, "stream": True, "max_tokens": 100}
        streamed[name] = events(pool.call("POST", f"/v1/sessions/{sessions[name]}/decode", body).text)

    threads = [threading.Thread(target=stream, args=(name,)) for name in sessions]
    for thread in threads:
        thread.start()
    until(lambda: all(each["length"] > 15 for each in pool.get("/v1/sessions")["data"]), 10)
    pool.workers["a"].kill()
    for thread in threads:
        thread.join()
    last = streamed["a"].pop()
    assert last["event"] == "error"
    assert last["data"]["error"]["code"] == "worker_lost"
    drawn = [event["data"]["token"] for event in streamed["a"]]
    assert drawn == lone_tokens(A_B_C, len(drawn)), "what came before the end is whole"
    assert [event["data"]["token"] for event in streamed["b"][:-1]] == lone_tokens(A_B_C, 100)


def test_after_a_death_sessions_go_elsewhere_and_the_lost_ones_are_said_to_be(pool: PoolProcess) -> None:
    sessions = on_both(pool)
    pool.workers["a"].kill()
    assert {pool.worker_of(pool.create()).name for _ in range(3)} == {"b"}
    answer = pool.call("GET", f"/v1/sessions/{sessions['a']}")
    assert (answer.status, answer.json["error"]["code"]) == (503, "worker_unreachable")
    assert answer.headers["Retry-After"] == "1"
    listed = pool.call("GET", "/v1/sessions")
    assert len(listed.json["data"]) == 4
    assert listed.headers["X-Decodepool-Unheard"] == "a"
    until(lambda: pool.metric('decodepool_pool_workers{state="unreachable"}') == 1, 5)
    until(lambda: [each["state"] for each in pool.get("/v1/live")["workers"]] == ["unreachable", "ready"], 5)
    assert pool.get("/v1/models")["data"][0]["id"] == "bytes"


def test_a_worker_that_comes_back_is_used_again(pool: PoolProcess, tmp_path: Path) -> None:
    lost = on_both(pool)["a"]
    pool.workers["a"].kill()
    until(lambda: pool.ready_workers == 1, 5)
    again = processes.worker(tmp_path, "a", pool.workers["a"].port)
    try:
        until(lambda: pool.ready_workers == 2)
        assert pool.worker_of(pool.create()).name == "a"
        answer = pool.call("GET", f"/v1/sessions/{lost}")
        assert (answer.status, answer.json["error"]["code"]) == (410, "session_gone")
    finally:
        again.kill()


def test_with_no_worker_left_the_pool_says_so(pool: PoolProcess) -> None:
    for worker in pool.workers.values():
        worker.kill()
    until(lambda: pool.metric('decodepool_pool_workers{state="ready"}') == 0, 5)
    assert pool.call("GET", "/healthz").status == 200
    assert pool.call("GET", "/readyz").status == 200, "clients are told, not refused"
    answer = pool.call("POST", "/v1/sessions", {"prompt": "A"})
    assert (answer.status, answer.json["error"]["code"]) == (503, "no_ready_worker")
    assert answer.headers["Retry-After"]
    assert pool.call("GET", "/v1/models").status == 503


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_openai_client_hears_of_a_death(pool: PoolProcess, stream: bool) -> None:
    client = openai.OpenAI(base_url=pool.url + "/v1", api_key="none", max_retries=0)
    died = threading.Event()

    def kill() -> None:
        until(lambda: pool.busy() == 1, 10)
        for worker in pool.workers.values():
            worker.kill()
        died.set()

    killer = threading.Thread(target=kill)
    killer.start()
    messages: Any = [{"role": "user", "content": "A B C"}]
    with pytest.raises(openai.APIError, match="ended"):
        for _ in client.chat.completions.create(model="bytes", messages=messages, stream=stream):
            pass
    killer.join()
    assert died.is_set()


def test_a_worker_that_drains_keeps_its_sessions_and_gets_no_new_ones(pool: PoolProcess) -> None:
    sessions = on_both(pool)
    with pool.open_stream(sessions["a"], max_tokens=150) as lines:
        next(lines)
        pool.workers["a"].signal(signal.SIGTERM)
        until(lambda: pool.metric('decodepool_pool_workers{state="draining"}') == 1, 5)
        assert {pool.worker_of(pool.create()).name for _ in range(2)} == {"b"}
        assert pool.get(f"/v1/sessions/{sessions['a']}")["state"] == "decoding"
        rest = [line for line in lines if line.startswith("event: ")]
    assert rest[-1] == "event: done"
    assert pool.workers["a"].end() == 0


def test_a_hung_worker_gets_no_sessions(pool: PoolProcess) -> None:
    pool.workers["a"].signal(signal.SIGSTOP)
    until(lambda: pool.ready_workers == 1, 10)
    assert {pool.worker_of(pool.create()).name for _ in range(3)} == {"b"}
    pool.workers["a"].signal(signal.SIGCONT)
    until(lambda: pool.ready_workers == 2, 10)
