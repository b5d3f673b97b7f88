"""A server of files inside the cluster's network, in ranges, as slow and as choosy as a test wants it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from decodepool_cluster.addresses import CONTROL_PLANE

PIECE_BYTES = 4096


@dataclass
class FileServer:
    """`token` None asks for none. `bytes_per_second` limits answers of more than `free_bytes`."""

    data: bytes
    token: str | None = None
    bytes_per_second: float | None = None
    free_bytes: int = 0
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def send(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one GET."""
        self.asked.append(handler.headers.get("Range", "all of it"))
        if self.token is not None and handler.headers.get("Authorization") != f"Bearer {self.token}":
            handler.send_error(HTTPStatus.UNAUTHORIZED)
            return
        begin, end = self._range(handler)
        handler.send_response(HTTPStatus.PARTIAL_CONTENT if "Range" in handler.headers else HTTPStatus.OK)
        handler.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(self.data)}")
        handler.send_header("Content-Length", str(end - begin))
        handler.send_header("ETag", '"one"')
        handler.end_headers()
        self._write(handler, self.data[begin:end])

    def _range(self, handler: BaseHTTPRequestHandler) -> tuple[int, int]:
        first, _, last = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        return int(first), min(len(self.data), int(last) + 1 if last else len(self.data))

    def _write(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        for begin in range(0, len(body), PIECE_BYTES):
            handler.wfile.write(body[begin : begin + PIECE_BYTES])
            if self.bytes_per_second and len(body) > self.free_bytes:
                time.sleep(PIECE_BYTES / self.bytes_per_second)


@contextmanager
def serving(server: FileServer) -> Iterator[FileServer]:
    """Serve where pods reach it; the calling thread has to be inside the cluster's network."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):  # a client that left
                server.send(self)

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer((CONTROL_PLANE, 0), Handler)
    server.url = f"http://{CONTROL_PLANE}:{listening.server_port}/models/tiny.gguf"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
