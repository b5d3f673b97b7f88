"""The part of an API server that a gateway speaks to: one Service's EndpointSlices, listed and watched over HTTP.

The real one is in the cluster's tests. This one can be made to fall silent, to forget, and to go away on command.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PATH = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
CLOSE = None


@dataclass
class SliceServer:
    """What is listed, what the present watch is told, and what was asked."""

    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 1
    silent: bool = False
    forgets: bool = False
    fails: bool = False
    lists: int = 0
    watches: list[dict[str, list[str]]] = field(default_factory=list)
    events: queue.Queue[dict[str, Any] | None] = field(default_factory=queue.Queue)
    port: int = 0

    def put(self, name: str, **worker: Any) -> None:
        """Write a slice of one pod, and tell whoever watches."""
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = self._slice(name, **worker)
        self._tell(kind, self.slices[name])

    def remove(self, name: str) -> None:
        """Take a slice away, and tell whoever watches."""
        self._tell("DELETED", self.slices.pop(name))

    def _tell(self, kind: str, piece: dict[str, Any]) -> None:
        self.version += 1
        piece["metadata"]["resourceVersion"] = str(self.version)
        if not self.silent:
            self.events.put({"type": kind, "object": piece})

    def _slice(self, name: str, *, ready: bool = True, terminating: bool = False) -> dict[str, Any]:
        endpoint = {
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": ready, "terminating": terminating},
            "targetRef": {"kind": "Pod", "name": f"pod-{name}", "uid": f"uid-{name}"},
        }
        return {"metadata": {"name": name}, "ports": [{"name": "http", "port": 8000}], "endpoints": [endpoint]}


class Handler(BaseHTTPRequestHandler):
    """Answers what a gateway asks."""

    protocol_version = "HTTP/1.1"
    state: SliceServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = parse_qs(url.query)
        assert url.path == PATH, url.path
        assert asked["labelSelector"] == ["kubernetes.io/service-name=pool-workers"]
        if self.state.fails:
            self._answer(500, {"kind": "Status", "code": 500})
        elif "watch" in asked:
            self._watch(asked)
        else:
            self.state.lists += 1
            listed = {
                "metadata": {"resourceVersion": str(self.state.version)},
                "items": list(self.state.slices.values()),
            }
            self._answer(200, listed)

    def _watch(self, asked: dict[str, list[str]]) -> None:
        self.state.watches.append(asked)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.state.forgets:
            self.state.forgets = False
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            self._line({"type": "ERROR", "object": gone})
        else:
            while (event := self.state.events.get()) is not CLOSE:
                self._line(event)
        self.wfile.write(b"0\r\n\r\n")

    def _line(self, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def slice_server() -> Iterator[SliceServer]:
    """Run one on a free port."""
    state = SliceServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"state": state}))
    server.daemon_threads = True
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield state
    finally:
        for _ in range(5):
            state.events.put(CLOSE)
        server.shutdown()
        server.server_close()
        thread.join()
