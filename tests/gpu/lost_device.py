"""A worker whose GPU is lost under eight streams; run by test_lost_device in a process of its own.

Prints a JSON object of what clients saw, and ends as the server does: with its exit code.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from decodepool_kernels.cuda import nvrtc
from decodepool_kernels.cuda.device import Gpu, Launch
from decodepool_sizing.api_keys import ApiKeys
from decodepool_web.sockets import listening_socket, url_of
from decodepool_worker.engine.open import Wanted, open_model
from decodepool_worker.serving.loading import served_from
from decodepool_worker.serving.server import serve_until_stopped
from decodepool_worker.serving.service import Served, Service

STREAMS = 8
CONTEXT = 4000
SOURCE = b'extern "C" __global__ void trap() { asm("trap;"); }'


def call(url: str, method: str, path: str, body: object = None, seconds: float = 10) -> tuple[int, Any]:
    """Return status and JSON; 0 where nobody answers any more."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=seconds)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    except OSError:
        return 0, None
    finally:
        connection.close()


def read(url: str, session: str, events: list[tuple[str, Any]]) -> None:
    """Read a stream to its end, whatever that is."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("POST", f"/v1/sessions/{session}/decode", json.dumps({"stream": True, "ignore_eos": True}))
    name = ""
    try:
        for line in connection.getresponse():
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                events.append((name, json.loads(line[6:])))
    except (OSError, http.client.HTTPException) as error:
        events.append(("cut", str(error)))


def watch(url: str, trap: threading.Event, seen: dict[str, Any]) -> None:
    """Begin streams, lose the device, and write down what there is to see."""
    made = [call(url, "POST", "/v1/sessions", {"tokens": [1, 5, 7 + i], "temperature": 0})[1] for i in range(STREAMS)]
    streams: list[list[tuple[str, Any]]] = [[] for _ in made]
    readers = [
        threading.Thread(target=read, args=(url, session["id"], events))
        for session, events in zip(made, streams, strict=True)
    ]
    for reader in readers:
        reader.start()
    while not all(len(events) > 20 for events in streams):
        time.sleep(0.001)
    trap.set()
    began = time.monotonic()
    for reader in readers:
        reader.join(30)
    seen["streams"] = [{"tokens": len(events) - 1, "last": events[-1][0], "said": events[-1][1]} for events in streams]
    seen["create"] = call(url, "POST", "/v1/sessions", {"tokens": [1]})[0]
    seen["healthz"] = call(url, "GET", "/healthz")[0]
    seen["seconds"] = time.monotonic() - began
    sys.stdout.write(json.dumps(seen))
    sys.stdout.flush()


def main() -> int:
    service, listening = Service(ApiKeys()), listening_socket("127.0.0.1", 0)
    trap, seen = threading.Event(), dict[str, Any]()

    def load() -> Served:
        loaded = open_model(Path(sys.argv[1]), Wanted(CONTEXT, STREAMS, device="cuda"))
        assert loaded.gpu is not None
        gpu = loaded.gpu.gpu
        target = f"--gpu-architecture=sm_{gpu.capability}"
        function = gpu.load(nvrtc.compiled("trap.cu", SOURCE, {}, [target]), "trap", 32, 0)
        served = served_from(loaded, "tiny", service)
        threading.Thread(
            target=_spring, args=(trap, gpu, served, Launch("trap", function, (1, 1), ())), daemon=True
        ).start()
        return served

    def announce(_: Served) -> None:
        threading.Thread(target=watch, args=(url_of(listening), trap, seen)).start()

    return asyncio.run(serve_until_stopped(service, listening, load, announce))


def _spring(trap: threading.Event, gpu: Gpu, served: Served, launch: Launch) -> None:
    trap.wait()

    def lost() -> None:
        gpu.enter()
        gpu.launch(launch)

    served.worker._steps.submit(lost)


if __name__ == "__main__":
    sys.exit(main())
