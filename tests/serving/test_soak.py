"""Gate 6: many streams for a minute, clients leaving at random; nothing is lost, and who stays is not disturbed."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from decodepool_sizing.kv import KVType
from decodepool_worker.engine.open import Wanted, open_model
from decodepool_worker.engine.rows import Engine, Sampling
from decodepool_worker.serving.loading import load_served
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.residence import Residence

from tests.serving.byte_model import lone_tokens
from tests.serving.live_server import Server, live_server, live_worker
from tests.sessions.checking_engine import Listener, run
from tests.tiny.catalogue import VARIANTS
from tests.tiny.models import VOCABULARY, write

STREAMS = 64
SECONDS = 60
CONTEXT = 512
DRAWING: dict[str, Any] = {"temperature": 0.9, "top_k": 40}

Alone = Callable[[list[int], int, int], list[int]]
"""What a lone session draws: prompt, count, seed."""


@dataclass
class Stream:
    """What one client saw of one session: event ids and tokens; `drawn` is what the session holds in the end."""

    prompt: list[int]
    seed: int
    asked: int
    stays: bool
    ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)

    def read(self, lines: Iterable[str]) -> None:
        """Take a stream's lines, to the end or to where the client leaves."""
        for line in lines:
            if line.startswith("id: "):
                self.ids.append(int(line[4:]))
            elif line.startswith("data: ") and "position" in (data := json.loads(line[6:])):
                self.tokens.append(data["token"])

    def fault(self, alone: Alone) -> str | None:
        """Say what is wrong with it; None if nothing is."""
        if self.ids != list(range(len(self.prompt), len(self.prompt) + len(self.ids))):
            return f"events are not consecutive from {len(self.prompt)}: {self.ids}"
        if self.tokens != self.drawn[: len(self.tokens)]:
            return f"the client was told {self.tokens}, the session holds {self.drawn}"
        if self.stays and not len(self.ids) == len(self.tokens) == len(self.drawn) == self.asked:
            return f"{self.asked} tokens were asked for, {len(self.tokens)} came"
        if self.drawn != alone(self.prompt, len(self.drawn), self.seed):
            return f"disturbed: {len(self.prompt)} tokens, seed {self.seed}: {self.drawn}"
        return None


def client(server: Server, index: int, vocabulary: range, end: float, seen: list[Stream]) -> None:
    """Sessions one after the other: half are read to their end, half are left somewhere."""
    dice = random.Random(index)
    while time.monotonic() < end:
        prompt = [dice.choice(vocabulary) for _ in range(dice.randint(1, 200))]
        stream = Stream(prompt, dice.randrange(2**64), dice.randint(1, 60), stays=dice.random() < 0.5)
        body = {"tokens": prompt, "seed": stream.seed, **DRAWING}
        session = server.post("/v1/sessions", body, 201)["id"]
        with server.open_stream(session, **DRAWING, max_tokens=stream.asked, ignore_eos=True) as lines:
            stream.read(lines if stream.stays else islice(lines, dice.randint(0, 100)))
        stream.drawn = server.get(f"/v1/sessions/{session}/tokens")["tokens"][len(prompt) :]
        seen.append(stream)
        server.call("DELETE", f"/v1/sessions/{session}")


def tasks(server: Server) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks())

    return asyncio.run_coroutine_threadsafe(count(), server.loop).result(5)


def crowd(server: Server, vocabulary: range) -> list[Stream]:
    """Have STREAMS clients come and go for SECONDS; return all that they saw, once nothing of them is left."""
    server.get("/healthz")
    before = tasks(server)
    seen: list[Stream] = []
    end = time.monotonic() + SECONDS
    threads = [threading.Thread(target=client, args=(server, i, vocabulary, end, seen)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.until(lambda: not sum(server.service.stats().sessions.values()))  # type: ignore[union-attr]  # it is loaded
    stats = server.service.stats()
    assert stats is not None
    assert (stats.pages.used, stats.pages.reserved, stats.fault) == (0, 0, None)
    server.until(lambda: tasks(server) <= before)
    assert server.service.metrics.streams._value.get() == 0
    return seen


@contextmanager
def byte_model(_: Path) -> Iterator[tuple[Server, range, Alone]]:
    with live_worker(sessions=STREAMS, context_tokens=CONTEXT) as live:
        yield (
            live,
            range(32, 127),
            lambda prompt, n, seed: lone_tokens(prompt, n, seed=seed, sampling=Sampling(**DRAWING)),
        )


@contextmanager
def cpu_engine(folder: Path) -> Iterator[tuple[Server, range, Alone]]:
    path = folder / "tiny.gguf"
    write(VARIANTS[-1], path)
    wanted = Wanted(CONTEXT, STREAMS, KVType.F16, threads=2)
    other = open_model(path, Wanted(CONTEXT, 1, KVType.F16, threads=1)).engine
    with live_server(lambda service: load_served(path, wanted, service)) as server:
        yield server, range(VOCABULARY), lambda prompt, n, seed: drawn_alone(other, prompt, n, seed)
    other.close()


def drawn_alone(engine: Engine, prompt: list[int], count: int, seed: int) -> list[int]:
    residence = Residence(engine, context_tokens=CONTEXT, sessions=1)
    listener = Listener()
    session = residence.create(prompt, seed=seed, sampling=Sampling(**DRAWING))
    residence.decode(session.id, DecodeRequest(max_tokens=count), listener)
    run(residence)
    return listener.tokens


@pytest.mark.slow
@pytest.mark.parametrize("world", [byte_model, cpu_engine])
def test_a_minute_of_streams_that_come_and_go_leaves_nothing_behind(world: Any, tmp_path: Path) -> None:
    with world(tmp_path) as (server, vocabulary, alone):
        seen = crowd(server, vocabulary)
        assert sum(stream.stays for stream in seen) > 100 < sum(not stream.stays for stream in seen)
        assert [fault for stream in seen if (fault := stream.fault(alone))] == []
