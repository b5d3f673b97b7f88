"""A process that serves the byte model.

`python -m tests.serving.fake_worker PORT_FILE DRAIN_SECONDS LOAD_SECONDS OFFLOADED_SECONDS`

SIGUSR1: its steps hang from then on. SIGUSR2: its engine fails.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

from decodepool_web.sockets import listening_socket
from decodepool_worker.serving.ending import end_process
from decodepool_worker.serving.logs import configure_logging
from decodepool_worker.serving.offload import LARGE_CHARACTERS, SMALL_CHARACTERS
from decodepool_worker.serving.server import ServerOptions, serve_until_stopped
from decodepool_worker.serving.service import Served, Service

from tests.serving.byte_model import ByteEngine, Gate, served_bytes


def main(port_file: str, drain_seconds: str, load_seconds: str, offloaded_seconds: str) -> None:
    configure_logging(as_json=True)
    service = Service()
    listener = listening_socket("127.0.0.1", 0)
    Path(port_file).write_text(str(listener.getsockname()[1]))

    gate = Gate(0.02)
    engine = ByteEngine(128, 4, gate)
    signal.signal(signal.SIGUSR1, lambda *_: gate.hold())
    signal.signal(signal.SIGUSR2, lambda *_: setattr(engine, "broken", True))

    def load() -> Served:
        time.sleep(float(load_seconds))
        return served_bytes(service, engine, context_tokens=2048)

    def announce(_: Served) -> None:
        jobs = (SMALL_CHARACTERS + 1, LARGE_CHARACTERS + 1) if float(offloaded_seconds) else ()
        under_way.extend(
            asyncio.ensure_future(service.offload.run(size, time.sleep, float(offloaded_seconds))) for size in jobs
        )

    under_way: list[asyncio.Future[None]] = []
    options = ServerOptions(drain_timeout_seconds=float(drain_seconds))
    end_process(asyncio.run(serve_until_stopped(service, listener, load, announce, options)))


if __name__ == "__main__":
    main(*sys.argv[1:])
