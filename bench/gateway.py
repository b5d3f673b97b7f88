"""What the gateway costs: the same worker asked directly and through it, by turns, in one run.

    python -m bench.gateway [--streams 1,16,64] [--tokens 200] [--rounds 7] [--step-ms 5] [--json]
    python -m bench.gateway MODEL.gguf [--streams 1,8] ... [--device cpu] [--threads 1]

Without a model, the worker is one whose engine takes `--step-ms` for a step and no work (`paced_worker.py`), so that
what is seen is serving and passing on. With one, it is `decodepool serve`; on a machine of few cores its threads and
the gateway then compete.

Each round asks both ways, the first one alternating, so that what else the machine does hits both. Three questions:

- a request: `GET /v1/sessions/{id}` on a kept connection, the worker's least work;
- a first token: a streamed decode of one token;
- streams: so many sessions decoding side by side, in tokens per second, and the gateway's own CPU time for each token.

A figure is the median over rounds; of a ratio, that of the rounds' own ratios, with the least and the most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp
from decodepool_cli.provenance import provenance

NAME = "bench"
REQUESTS, FIRST_TOKENS = 200, 40
"""Of each kind, a round and a way."""

START_SECONDS = 180.0
WAYS = ("direct", "gateway")
Http = aiohttp.ClientSession


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    """Time that a process's main thread has run: the gateway's event loop."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def process(url: str, *words: str) -> AsyncIterator[int]:
    """Run a server until the end of the block; yield its process id once it is ready."""
    running = await asyncio.create_subprocess_exec(sys.executable, "-m", *words, stdout=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as http:
            while not await is_ready(http, url):
                assert running.returncode is None, f"{words[0]} ended"
                await asyncio.sleep(0.2)
        yield running.pid
    finally:
        running.terminate()
        await running.wait()


async def is_ready(http: Http, url: str) -> bool:
    try:
        async with http.get(url + "/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def created(http: Http, prompt: str) -> str:
    """Make a session and wait until its prompt is evaluated; return its path."""
    async with http.post("/v1/sessions", json={"prompt": prompt, "temperature": 0}) as answer:
        path = f"/v1/sessions/{(await answer.json())['id']}"
    while True:
        async with http.get(path) as answer:
            if (await answer.json())["state"] == "idle":
                return path
        await asyncio.sleep(0.02)


async def streamed(http: Http, path: str, tokens: int) -> int:
    """Read a streamed decode to its end; return how many tokens came."""
    body = {"max_tokens": tokens, "stream": True, "ignore_eos": True}
    async with http.post(path + "/decode", json=body) as answer:
        return (await answer.read()).count(b"event: token")


async def request_ms(http: Http, path: str) -> list[float]:
    async def get() -> None:
        async with http.get(path) as answer:
            await answer.read()

    return await timed(get, REQUESTS)


async def first_token_ms(http: Http, path: str) -> list[float]:
    async def decode() -> None:
        assert await streamed(http, path, 1) == 1

    return await timed(decode, FIRST_TOKENS)


async def timed(work: Callable[[], Awaitable[None]], count: int) -> list[float]:
    await work()  # the connection is there from now on
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await work()
        found.append((time.perf_counter() - began) * 1e3)
    return found


async def tokens_per_second(http: Http, count: int, tokens: int) -> float:
    paths = await asyncio.gather(*(created(http, f"{i} is a number. Once upon a time") for i in range(count)))
    began = time.perf_counter()
    got = await asyncio.gather(*(streamed(http, path, tokens) for path in paths))
    seconds = time.perf_counter() - began
    await asyncio.gather(*(http.delete(path) for path in paths))
    assert got == [tokens] * count, f"not every stream was whole: {got}"
    return count * tokens / seconds


async def by_turns(rounds: int, ways: Sequence[Http], measure: Callable[[Http], Awaitable[Any]]) -> list[list[Any]]:
    """Measure both ways in each round; return each way's figures."""
    found: list[list[Any]] = [[], []]
    for turn in range(rounds):
        for way in (0, 1) if turn % 2 == 0 else (1, 0):
            found[way].append(await measure(ways[way]))
    return found


def latency(figures: Sequence[Sequence[Sequence[float]]]) -> dict[str, float]:
    """Milliseconds of either way over all rounds, and what the gateway adds to the median: that of the rounds' own."""
    direct, through = [[value for part in way for value in part] for way in figures]
    added = [median(b) - median(a) for a, b in zip(*figures, strict=True)]
    return {
        "direct_ms": round(median(direct), 3),
        "gateway_ms": round(median(through), 3),
        "direct_ms_99th": round(quantiles(direct, n=100)[98], 3),
        "gateway_ms_99th": round(quantiles(through, n=100)[98], 3),
        "added_ms": round(median(added), 3),
        "added_ms_least": round(min(added), 3),
        "added_ms_most": round(max(added), 3),
    }


async def throughput(ways: Sequence[Http], gateway: int, count: int, tokens: int, rounds: int) -> dict[str, float]:
    spent: list[float] = []

    async def measure(http: Http) -> float:
        before = cpu_seconds(gateway)
        rate = await tokens_per_second(http, count, tokens)
        if http is ways[1]:
            spent.append((cpu_seconds(gateway) - before) / (count * tokens))
        return rate

    direct, through = await by_turns(rounds, ways, measure)
    ratios = [b / a for a, b in zip(direct, through, strict=True)]
    return {
        "streams": count,
        "direct_tokens_per_second": round(median(direct), 1),
        "gateway_tokens_per_second": round(median(through), 1),
        "ratio": round(median(ratios), 4),
        "ratio_least": round(min(ratios), 4),
        "ratio_most": round(max(ratios), 4),
        "gateway_cpu_us_per_token": round(median(spent) * 1e6, 1),
    }


def worker_command(options: argparse.Namespace) -> tuple[str, ...]:
    """What starts the worker, less its address, its size and its name."""
    if options.model is None:
        return ("bench.paced_worker", f"--step-ms={options.step_ms}")
    threads = [] if options.threads is None else [f"--threads={options.threads}"]
    return ("decodepool_cli", "serve", options.model, "--context=512", f"--device={options.device}", *threads)


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    began_under = os.getloadavg()[0]
    widths = [int(each) for each in options.streams.split(",")]
    worker_url, gateway_url = (f"http://127.0.0.1:{free_port()}" for _ in WAYS)
    at = [f"--port={url.rpartition(':')[2]}" for url in (worker_url, gateway_url)]
    worker = (*worker_command(options), at[0], f"--sessions={max(widths)}", f"--worker-tag-of={NAME}")
    gateway = ("decodepool_gateway", "--pool=bench", "--host=127.0.0.1", at[1], f"--worker={NAME}={worker_url}")
    limit = aiohttp.ClientTimeout(total=600)
    async with (
        process(worker_url, *worker),
        process(gateway_url, *gateway) as gateway_id,
        aiohttp.ClientSession(worker_url, timeout=limit, connector=aiohttp.TCPConnector(limit=0)) as direct,
        aiohttp.ClientSession(gateway_url, timeout=limit, connector=aiohttp.TCPConnector(limit=0)) as through,
    ):
        ways, path = (direct, through), await created(direct, "Once upon a time")
        requests = await by_turns(options.rounds, ways, lambda http: request_ms(http, path))
        firsts = await by_turns(options.rounds, ways, lambda http: first_token_ms(http, path))
        await direct.delete(path)
        streams = [await throughput(ways, gateway_id, each, options.tokens, options.rounds) for each in widths]
        held = resident_bytes(gateway_id)
    return {
        **provenance(),
        "load_average": [round(load, 2) for load in (began_under, os.getloadavg()[0])],
        "model": Path(options.model).name if options.model else f"paced, {options.step_ms:g} ms a step",
        "rounds": options.rounds,
        "request": latency(requests),
        "first_token": latency(firsts),
        "streams": streams,
        "gateway_resident_bytes": held,
    }


def said(report: dict[str, Any]) -> str:
    lines = [
        f"{name}: {figures['direct_ms']} ms direct, {figures['gateway_ms']} ms through, {figures['added_ms']} ms added"
        for name, figures in (("request", report["request"]), ("first token", report["first_token"]))
    ]
    lines += [
        f"{each['streams']} streams: {each['direct_tokens_per_second']} tok/s direct, ratio {each['ratio']}"
        f" ({each['ratio_least']} to {each['ratio_most']}), {each['gateway_cpu_us_per_token']} us of CPU a token"
        for each in report["streams"]
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = asyncio.run(measured(options))
    print(json.dumps(report, indent=2) if options.json else said(report))


if __name__ == "__main__":
    main()
