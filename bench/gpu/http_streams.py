"""Streams through the server beside the bare engine on this machine's GPU: what HTTP, text and scheduling cost.

    python -m bench.gpu.http_streams --out DIRECTORY [--type Q8_0] [--streams 64]

Serves Llama-3-8B's shape with random weights in this process, reads every stream in another, and writes
DIRECTORY/h200-http.json. It needs what serving needs beside the sources.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import aiohttp
from decodepool_cli.measuring import GREEDY, Decoding, read_prompt
from decodepool_cli.provenance import provenance
from decodepool_sizing.api_keys import ApiKeys
from decodepool_sizing.kv import pages
from decodepool_web.sockets import listening_socket, url_of
from decodepool_worker.engine.open import Loaded, Wanted, open_named_shape
from decodepool_worker.serving.loading import served_from
from decodepool_worker.serving.server import ServerOptions, serve_until_stopped
from decodepool_worker.serving.service import Served, Service

from bench.gpu.folders import made_folder

SHAPE, VOCABULARY = "llama-3-8b", 128_256
PROMPT, DRAWN = 1024, 256
CONTEXT = PROMPT + DRAWN + 64
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def vocabulary() -> dict[str, object]:
    """A tokenizer of as many short words, so that text costs what text costs."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(value) for value in shown] + [chr(0x100 + i) for i in range(256 - len(shown))]
    words = ["\u0120" + "".join(LETTERS[i // 26**place % 26] for place in range(4)) for i in range(VOCABULARY - 258)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": [*letters, *words, "<s>", "</s>"],
        "tokenizer.ggml.token_type": [1] * (VOCABULARY - 2) + [3, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": VOCABULARY - 2,
        "tokenizer.ggml.eos_token_id": VOCABULARY - 1,
    }


def bare_tokens_per_second(loaded: Loaded, streams: int) -> float:
    """The engine's own rate over what the streams do, as warm: all prompts, then as many tokens drawn."""
    each = pages(CONTEXT)
    tables = [list(range(i * each, (i + 1) * each)) for i in range(streams)]
    for index, table in enumerate(tables):
        read_prompt(loaded.engine, table, prompt(index))
    decoding = Decoding(loaded.engine, tables, PROMPT, GREEDY, CONTEXT - PROMPT)
    began = time.perf_counter()
    for _ in range(DRAWN):
        decoding.step()
    seconds = time.perf_counter() - began
    decoding.finish()
    return streams * DRAWN / seconds


def prompt(index: int) -> list[int]:
    """A stream's own tokens."""
    return [(i * 7919 + 17 + index) % VOCABULARY for i in range(PROMPT)]


@dataclass
class Found:
    """What the run is about, as its threads learn it."""

    bare_tokens_per_second: float = 0.0
    gpu: Mapping[str, str | int] = field(default_factory=dict)
    report: dict[str, Any] | None = None


def serve(weights: str, streams: int, found: Found) -> None:
    """Serve until the client has read its streams."""
    service, listening = Service(ApiKeys()), listening_socket("127.0.0.1", 0)

    def load() -> Served:
        loaded = open_named_shape(SHAPE, weights, Wanted(CONTEXT, streams, device="cuda"))
        assert loaded.gpu is not None
        found.gpu = loaded.gpu.described()
        found.bare_tokens_per_second = bare_tokens_per_second(loaded, streams)
        return served_from(replace(loaded, metadata={**loaded.metadata, **vocabulary()}), SHAPE, service)

    def announce(_: Served) -> None:
        threading.Thread(target=read, args=(url_of(listening), streams, found), daemon=True).start()

    asyncio.run(serve_until_stopped(service, listening, load, announce, ServerOptions(drain_timeout_seconds=1.0)))


def read(url: str, streams: int, found: Found) -> None:
    command = [sys.executable, "-m", "bench.gpu.http_streams", "--read", url, "--streams", str(streams)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stderr, file=sys.stderr)
    found.report = json.loads(done.stdout) if done.returncode == 0 else None
    os.kill(os.getpid(), signal.SIGTERM)


async def read_streams(url: str, streams: int) -> dict[str, Any]:
    """Read every stream to its end; the rate while all of them flow, and the time from one token to the next."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as http:
        sessions = await asyncio.gather(*(filled(http, index) for index in range(streams)))
        times = await asyncio.gather(*(arrivals(http, session) for session in sessions))
    begin, end = max(stamps[0] for stamps in times), min(stamps[-1] for stamps in times)
    flowing = sum(begin < stamp <= end for stamps in times for stamp in stamps)
    gaps = sorted(b - a for stamps in times for a, b in pairwise(stamps) if begin <= a and b <= end)
    return {
        "streams": streams,
        "tokens": flowing,
        "tokens_per_second": round(flowing / (end - begin), 1),
        "gap_ms_median": round(gaps[len(gaps) // 2] * 1e3, 3),
        "gap_ms_99th": round(gaps[len(gaps) * 99 // 100] * 1e3, 3),
    }


async def filled(http: aiohttp.ClientSession, index: int) -> str:
    """Make a session and wait until its prompt is evaluated; return its id."""
    async with http.post("/v1/sessions", json={"tokens": prompt(index), "temperature": 0}) as answer:
        session: dict[str, Any] = await answer.json()
    while session["state"] != "idle":
        await asyncio.sleep(0.1)
        async with http.get(f"/v1/sessions/{session['id']}") as answer:
            session = await answer.json()
    return str(session["id"])


async def arrivals(http: aiohttp.ClientSession, session: str) -> list[float]:
    """Decode, and return when each token came."""
    body = {"max_tokens": DRAWN, "stream": True, "ignore_eos": True}
    async with http.post(f"/v1/sessions/{session}/decode", json=body) as answer:
        stamps = [time.perf_counter() async for line in answer.content if line.startswith(b"event: token")]
    assert len(stamps) == DRAWN, f"{session} had {len(stamps)} tokens"
    return stamps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=made_folder)
    parser.add_argument("--type", default="Q8_0", dest="weights")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--read", metavar="URL")
    options = parser.parse_args()
    if options.read:
        print(json.dumps(asyncio.run(read_streams(options.read, options.streams))))
        return
    found = Found()
    serve(options.weights, options.streams, found)
    assert found.report is not None, "the client failed"
    bare = found.bare_tokens_per_second
    report = {
        **provenance(found.gpu),
        "model": f"{SHAPE} {options.weights}",
        "device": "cuda",
        "http": {
            **found.report,
            "bare_tokens_per_second": round(bare, 1),
            "fraction_of_bare": round(found.report["tokens_per_second"] / bare, 4),
        },
    }
    print(json.dumps(report["http"]))
    if options.out:
        (options.out / "h200-http.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
