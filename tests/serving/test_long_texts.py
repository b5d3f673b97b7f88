"""One text of megabytes costs neither the memory of its tokens nor anybody's time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from decodepool_sizing.api_errors import ApiError
from decodepool_worker.serving import heap
from decodepool_worker.serving.offload import LARGE_CHARACTERS, SMALL_CHARACTERS, Offload
from decodepool_worker.serving.text_api import MAX_TOKENIZED_BYTES

from tests.serving.live_server import Live

LONG = "1" * 4_000_000


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions", {"prompt": LONG}),
        ("/v1/sessions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/completions", {"model": "bytes", "prompt": LONG}),
        ("/v1/chat/completions", {"model": "bytes", "messages": [{"role": "user", "content": LONG}]}),
    ],
    ids=["prompt", "messages", "completion", "chat"],
)
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(live: Live, path: str, body: dict[str, object]) -> None:
    before = resident_bytes()
    error = live.post(path, body, 400)["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].endswith("and the context holds 512")
    assert resident_bytes() - before < 100 << 20


def test_appended_text_is_held_to_the_same(live: Live) -> None:
    session = live.create("A")
    error = live.post(f"/v1/sessions/{session}/append", {"text": LONG}, 400)["error"]
    assert error["code"] == "context_length_exceeded"
    assert live.get(f"/v1/sessions/{session}")["length"] == 1


@pytest.mark.parametrize("letter", ["1", "é"])
def test_tokenize_has_a_limit_of_its_own_in_bytes(live: Live, letter: str) -> None:
    longest = letter * (MAX_TOKENIZED_BYTES // len(letter.encode()))
    assert live.post("/tokenize", {"text": longest})["count"] == MAX_TOKENIZED_BYTES
    error = live.post("/tokenize", {"text": longest + letter}, 400)["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "text")
    assert str(MAX_TOKENIZED_BYTES) in error["message"]


def test_large_work_is_done_one_at_a_time_and_holds_up_nothing_smaller() -> None:
    let_go, running, most = threading.Event(), set[int](), [0]

    def large(index: int) -> None:
        running.add(index)
        most[0] = max(most[0], len(running))
        assert let_go.wait(10)
        running.discard(index)

    async def run() -> None:
        offload = Offload()
        waiting = [asyncio.create_task(offload.run(LARGE_CHARACTERS + 1, large, index)) for index in range(8)]
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            assert await offload.run(LARGE_CHARACTERS, lambda: "done") == "done"
            assert await offload.run(SMALL_CHARACTERS, lambda: "done") == "done"
        let_go.set()
        await asyncio.gather(*waiting)
        offload.close()

    asyncio.run(run())
    assert most == [1]


def test_the_heap_is_given_back_after_large_work_even_if_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(heap, "_TRIM", trimmed.append)

    async def run() -> None:
        offload = Offload()
        with pytest.raises(ZeroDivisionError):
            await offload.run(LARGE_CHARACTERS + 1, lambda: 1 // 0)
        await offload.run(LARGE_CHARACTERS, lambda: 1)
        offload.close()

    asyncio.run(run())
    assert trimmed == [0]


def test_what_threads_have_yet_to_do_is_refused_at_the_end() -> None:
    let_go = threading.Event()

    async def run() -> None:
        offload = Offload()
        waiting = [asyncio.create_task(offload.run(LARGE_CHARACTERS + 1, let_go.wait, 10)) for _ in range(2)]
        await asyncio.sleep(0)
        offload.close()
        refused = [*await asyncio.gather(*waiting, return_exceptions=True)]
        with pytest.raises(ApiError) as late:
            await offload.run(LARGE_CHARACTERS, let_go.wait, 10)
        assert [getattr(each, "code", None) for each in [*refused, late.value]] == ["draining"] * 3

    asyncio.run(run())
    let_go.set()
