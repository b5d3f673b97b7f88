"""`python -m tests.gateway.byte_worker NAME --port PORT ...`: a worker process, its own serving code and all.

Its engine is the byte model: it starts at once and keeps the pace it is told.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop
from decodepool_sizing.api_keys import ApiKeys
from decodepool_sizing.session_ids import worker_tag
from decodepool_web.sockets import listening_socket
from decodepool_worker.serving.logs import configure_logging
from decodepool_worker.serving.server import ServerOptions, serve_until_stopped
from decodepool_worker.serving.service import Served, Service

from tests.serving.byte_model import ByteEngine, Gate, served_bytes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--drain-timeout", type=float, default=30.0)
    parser.add_argument("--api-keys", type=Path)
    given = parser.parse_args()
    configure_logging(as_json=True)
    keys = ApiKeys.from_file(given.api_keys) if given.api_keys else ApiKeys()

    async def serve() -> int:
        service = Service(keys, tag=worker_tag(given.name))
        listener = listening_socket("127.0.0.1", given.port)

        def load() -> Served:
            pages = 2 * given.sessions * given.context // 64
            engine = ByteEngine(pages, given.sessions, Gate(given.step_seconds))
            return served_bytes(service, engine, context_tokens=given.context, sessions=given.sessions)

        options = ServerOptions(drain_timeout_seconds=given.drain_timeout)
        return await serve_until_stopped(service, listener, load, lambda served: None, options)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())


if __name__ == "__main__":
    sys.exit(main())
