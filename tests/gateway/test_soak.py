"""Hundreds of clients that come and leave at any moment: nothing of them stays, and nobody else notices."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
from pathlib import Path

import psutil
import pytest

from tests.gateway.processes import PoolProcess, running_pool, until
from tests.serving.byte_model import lone_tokens

pytestmark = pytest.mark.slow

CLIENTS, THREADS = 400, 16
BODY = {"model": "bytes", "max_tokens": 300, "temperature": 0}


def visit(pool: PoolProcess, chance: random.Random) -> None:
    """Ask for something, read for a moment or to the end, and leave, politely or not."""
    body = {**BODY, "prompt": "A B C", "stream": chance.random() < 0.6}
    data = json.dumps(body).encode()
    raw = socket.create_connection(("127.0.0.1", pool.port))
    raw.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode())
    raw.sendall(data[: chance.randrange(len(data))] if chance.random() < 0.1 else data)
    raw.settimeout(chance.choice([0.0001, 0.01, 0.05, 0.2, 0.5]))
    try:
        while raw.recv(chance.choice([64, 65536])):
            pass
    except TimeoutError:
        pass
    if chance.random() < 0.5:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def connections(pool: PoolProcess) -> int:
    return len(psutil.Process(pool.popen.pid).net_connections("tcp"))


def test_nothing_is_left_of_clients_that_left(tmp_path: Path) -> None:
    with running_pool(tmp_path, each=["--step-seconds=0.002"], options=["--queue-timeout=2"]) as pool:
        staying = pool.create("A B C")
        went: list[list[int]] = []
        steady = threading.Thread(target=lambda: went.append(pool.decode(staying, max_tokens=1500)["tokens"]))
        steady.start()

        def crowd(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(CLIENTS // THREADS):
                visit(pool, chance)

        threads = [threading.Thread(target=crowd, args=(seed,)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in (*threads, steady):
            thread.join()
        assert went == [lone_tokens(list(b"A B C"), 1500)]
        until(lambda: [each["id"] for each in pool.get("/v1/sessions")["data"]] == [staying], 5)
        until(lambda: pool.metric("decodepool_pool_queued") == 0, 5)
        assert pool.metric("decodepool_gateway_open_streams") == 0
        assert pool.metric("decodepool_gateway_disconnects_total") > 50
        until(lambda: connections(pool) < 60, 40)  # those to the workers are kept for 30 s, no more than ran at once
        assert "Traceback" not in pool.log.read_text()
        for worker in pool.workers.values():
            assert "Traceback" not in worker.log.read_text()
