"""A worker on a real socket, in a thread with an event loop of its own; and a reader of what it streams."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection
from typing import Any

from decodepool_worker.serving.application import build_application
from decodepool_worker.serving.auth import ApiKeys
from decodepool_worker.serving.connections import listening
from decodepool_worker.serving.service import Served, Service
from decodepool_worker.serving.sockets import listening_socket, url_of

from tests.serving.byte_model import ByteEngine, Gate, served_bytes


@dataclass(frozen=True)
class Reply:
    """What a request got."""

    status: int
    headers: Message
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Server:
    """A running worker, whatever it serves."""

    url: str
    port: int
    service: Service
    loop: asyncio.AbstractEventLoop

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send one request on a connection of its own. `body` is JSON, unless it is bytes."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read().decode())

    def post(self, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
        """POST; return the JSON answer, of the expected status."""
        answer = self.call("POST", path, {} if body is None else body, **headers)
        assert answer.status == status, (answer.status, answer.text[:300])
        return answer.json

    def get(self, path: str, status: int = 200) -> Any:
        """GET; return the JSON answer, of the expected status."""
        answer = self.call("GET", path)
        assert answer.status == status, (answer.status, answer.text[:300])
        return answer.json

    def create(self, text: str = "A B C", **more: Any) -> str:
        """Create a session; return its id."""
        session_id: str = self.post("/v1/sessions", {"prompt": text, **more}, 201)["id"]
        return session_id

    def decode(self, session_id: str, **body: Any) -> Any:
        """Decode greedily and whole."""
        return self.post(f"/v1/sessions/{session_id}/decode", {"temperature": 0, **body})

    def stream(self, session_id: str, last_event_id: int | None = None, **body: Any) -> list[dict[str, Any]]:
        """Decode greedily as events; return them all."""
        headers = {} if last_event_id is None else {"Last_Event_ID": str(last_event_id)}
        path = f"/v1/sessions/{session_id}/decode"
        return events(self.call("POST", path, {"temperature": 0, "stream": True, **body}, **headers).text)

    @contextmanager
    def open_stream(self, session_id: str, **body: Any) -> Iterator[Iterator[str]]:
        """Decode as events and yield their lines; leave the block early and the client is gone."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            wanted = json.dumps({"temperature": 0, "stream": True, **body})
            connection.request("POST", f"/v1/sessions/{session_id}/decode", wanted)
            answer = connection.getresponse()
            with closing(answer):
                yield (line.decode().rstrip("\n") for line in answer)

    def close_all(self) -> None:
        """Close every session."""
        for session in self.get("/v1/sessions")["data"]:
            self.call("DELETE", f"/v1/sessions/{session['id']}")

    def until(self, claim: Callable[[], Any], seconds: float = 5.0) -> float:
        """Wait until `claim` holds; return how long that took."""
        began = time.monotonic()
        while not claim():
            assert time.monotonic() - began < seconds, "it did not come to that in time"
            time.sleep(0.01)
        return time.monotonic() - began

    def busy(self) -> int:
        """How many sessions are decoding."""
        return sum(session["state"] == "decoding" for session in self.get("/v1/sessions")["data"])


@dataclass
class Live(Server):
    """A worker that serves the byte model. `gate` paces its engine."""

    engine: ByteEngine
    gate: Gate


def events(text: str) -> list[dict[str, Any]]:
    """Parse an event stream: a list of {event, id, data}, JSON decoded."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            fields: dict[str, Any] = dict(line.split(": ", 1) for line in lines)
            fields["data"] = fields["data"] if fields["data"] == "[DONE]" else json.loads(fields["data"])
            found.append(fields)
    return found


@contextmanager
def live_worker(
    *,
    sessions: int = 4,
    context_tokens: int = 512,
    keys: tuple[bytes, ...] = (),
    load: bool = True,
    step_seconds: float = 0.0,
) -> Iterator[Live]:
    """Run a worker that serves the byte model; with `load` False it stays at loading."""
    gate = Gate(step_seconds)
    engine = ByteEngine(page_count=2 * sessions * context_tokens // 64, slot_count=sessions, pace=gate)

    def serve(service: Service) -> Served:
        return served_bytes(service, engine, context_tokens=context_tokens, sessions=sessions)

    with live_server(serve if load else None, keys) as server:
        try:
            yield Live(server.url, server.port, server.service, server.loop, engine, gate)
        finally:
            gate.release()


@contextmanager
def live_server(serve: Callable[[Service], Served] | None, keys: tuple[bytes, ...] = ()) -> Iterator[Server]:
    """Run a worker that serves what `serve` makes on its event loop; nothing yet, where that is None."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="live-server")
    thread.start()
    listener = listening_socket("127.0.0.1", 0)
    service, stack = asyncio.run_coroutine_threadsafe(_start(listener, serve, ApiKeys(keys)), loop).result(60)
    try:
        yield Server(url_of(listener), listener.getsockname()[1], service, loop)
    finally:
        asyncio.run_coroutine_threadsafe(_stop(service, stack), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _start(
    listener: socket.socket, serve: Callable[[Service], Served] | None, keys: ApiKeys
) -> tuple[Service, AsyncExitStack]:
    service, stack = Service(keys), AsyncExitStack()
    await stack.enter_async_context(listening(build_application(service), service, listener))
    if serve is not None:
        served = serve(service)
        served.worker.start()
        service.open(served)
    return service, stack


async def _stop(service: Service, stack: AsyncExitStack) -> None:
    served = service.loaded()
    if served is not None:
        await served.worker.stop()
        served.close()
    await stack.aclose()
    service.offload.close()
