"""A full pool: new sessions wait for a bounded time, in a bounded number, and then are told when to come again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.processes import PoolProcess, answers, gateway, running_pool, until

pytestmark = pytest.mark.slow  # time to wait, and workers of its own

CHAT: dict[str, Any] = {"model": "bytes", "prompt": "A", "max_tokens": 2}


@pytest.fixture(scope="module")
def small_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolProcess]:
    options = ["--queue-timeout=3", "--queue-length=2"]
    with running_pool(tmp_path_factory.mktemp("pool"), each=["--sessions=1"], options=options) as pool:
        yield pool


@pytest.fixture
def full(small_pool: PoolProcess) -> Iterator[list[str]]:
    """Both places taken; the sessions that have them."""
    yield [small_pool.create() for _ in range(2)]
    small_pool.close_all()


def test_a_place_that_comes_free_is_given_at_once(small_pool: PoolProcess, full: list[str]) -> None:
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(small_pool.call("POST", "/v1/completions", CHAT)))
    waiting.start()
    until(lambda: small_pool.metric("decodepool_pool_queued") == 1, 5)
    began = time.monotonic()
    small_pool.call("DELETE", f"/v1/sessions/{full[0]}")
    waiting.join()
    assert time.monotonic() - began < 1
    assert got[0].status == 200


def test_a_place_that_another_gateway_freed_is_found(small_pool: PoolProcess, full: list[str]) -> None:
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(small_pool.call("POST", "/v1/sessions", {"prompt": "A"})))
    waiting.start()
    until(lambda: small_pool.metric("decodepool_pool_queued") == 1, 5)
    worker = small_pool.worker_of(full[1])
    worker.call("DELETE", f"/v1/sessions/{full[1]}")
    waiting.join()
    assert got[0].status == 201
    assert small_pool.worker_of(got[0].json["id"]) == worker


def test_whoever_waited_too_long_is_told_when_to_come_again(small_pool: PoolProcess, full: list[str]) -> None:
    began = time.monotonic()
    answer = small_pool.call("POST", "/v1/sessions", {"prompt": "A"})
    assert 2.5 < time.monotonic() - began < 8
    assert answer.status == 429
    assert answer.headers["Retry-After"] == "1"
    assert answer.json["error"]["code"] == "no_free_session"
    assert "all 2 places" in answer.json["error"]["message"]


def test_a_full_queue_refuses_at_once(small_pool: PoolProcess, full: list[str]) -> None:
    waiting = [threading.Thread(target=small_pool.call, args=("POST", "/v1/completions", CHAT)) for _ in range(2)]
    for thread in waiting:
        thread.start()
    until(lambda: small_pool.metric("decodepool_pool_queued") == 2, 5)
    assert small_pool.metric("decodepool_pool_utilization_ratio") == 2
    began = time.monotonic()
    client = openai.OpenAI(base_url=small_pool.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.RateLimitError, match="2 requests wait"):
        client.completions.create(**CHAT)
    assert time.monotonic() - began < 2
    for thread in waiting:
        thread.join()


def test_two_gateways_give_no_place_twice_and_leave_none_empty(small_pool: PoolProcess, tmp_path: Path) -> None:
    """Both hear of the same two places and each has two clients: four answers, one after the other where need be."""
    other = gateway(tmp_path, list(small_pool.workers.values()), "--queue-timeout=20")
    try:
        until(lambda: answers(other, "/healthz") and other.ready_workers == 2)
        got: list[int] = []
        body = {**CHAT, "max_tokens": 200}

        def ask(pool: PoolProcess) -> None:
            got.append(pool.call("POST", "/v1/completions", body).status)

        threads = [threading.Thread(target=ask, args=(each,)) for each in (small_pool, other, small_pool, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [200] * 4
        assert small_pool.get("/v1/sessions")["data"] == []
    finally:
        other.kill()


def test_other_gateways_take_places_too(small_pool: PoolProcess) -> None:
    """Sessions that this gateway has not placed: its guess is wrong, the worker's refusal sends it on."""
    a, b = small_pool.workers["a"], small_pool.workers["b"]
    taken = a.create()
    made = small_pool.create()
    assert small_pool.worker_of(made) == b
    assert small_pool.call("POST", "/v1/sessions", {"prompt": "A"}).status == 429
    a.call("DELETE", f"/v1/sessions/{taken}")
    assert small_pool.worker_of(small_pool.create()) == a
    small_pool.close_all()
