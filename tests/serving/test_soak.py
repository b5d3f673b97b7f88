"""Gate 6: many streams for a minute, clients leaving at random; nothing is lost, and who stays is not disturbed."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter

import pytest
from decodepool_worker.engine.rows import Sampling

from tests.serving.byte_model import lone_tokens
from tests.serving.live_server import Live, live_worker

STREAMS = 64
SECONDS = 60
SAMPLING = Sampling(temperature=0.9, top_k=40)


def client(live: Live, index: int, end: float, seen: Counter[str], faults: list[str]) -> None:
    """Sessions one after the other: half are read to their end and compared, half are left somewhere."""
    dice = random.Random(index)
    while time.monotonic() < end:
        prompt, seed = [dice.randrange(32, 127) for _ in range(dice.randint(1, 200))], dice.randrange(2**64)
        session = live.post("/v1/sessions", {"tokens": prompt, "seed": seed, "temperature": 0.9, "top_k": 40}, 201)[
            "id"
        ]
        stay = dice.random() < 0.5
        with live.open_stream(session, temperature=0.9, max_tokens=dice.randint(1, 60), ignore_eos=True) as lines:
            leave_at = 10**9 if stay else dice.randint(0, 100)
            ids = [int(line[4:]) for line, _ in zip(lines, range(leave_at), strict=False) if line.startswith("id: ")]
        tokens = live.get(f"/v1/sessions/{session}/tokens")["tokens"]
        drawn = tokens[len(prompt) :]
        if drawn != lone_tokens(prompt, len(drawn), seed=seed, sampling=SAMPLING) or len(ids) > len(drawn):
            faults.append(f"client {index}: {len(prompt)} tokens, seed {seed}: {drawn[:5]}")
        seen["stayed" if stay else "left"] += 1
        live.call("DELETE", f"/v1/sessions/{session}")


def tasks(live: Live) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks())

    return asyncio.run_coroutine_threadsafe(count(), live.loop).result(5)


@pytest.mark.slow
def test_a_minute_of_streams_that_come_and_go_leaves_nothing_behind() -> None:
    with live_worker(sessions=STREAMS, context_tokens=512) as live:
        live.get("/healthz")
        before = tasks(live)
        seen: Counter[str] = Counter()
        faults: list[str] = []
        end = time.monotonic() + SECONDS
        threads = [threading.Thread(target=client, args=(live, i, end, seen, faults)) for i in range(STREAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        assert seen["stayed"] > 100 < seen["left"]
        stats = live.service.stats()
        assert stats is not None
        live.until(lambda: not sum(live.service.stats().sessions.values()))  # type: ignore[union-attr]  # it is loaded
        stats = live.service.stats()
        assert stats is not None
        assert (stats.pages.used, stats.pages.reserved, stats.fault) == (0, 0, None)
        live.until(lambda: tasks(live) <= before)
        assert live.service.metrics.streams._value.get() == 0
