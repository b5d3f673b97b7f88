"""A client of the API over plain sockets, and a reader of what is streamed to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPConnection
from typing import Any


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
class Client:
    """Whoever talks to a worker, or to a pool's gateway."""

    url: str
    port: int
    host: str = field(default="127.0.0.1", kw_only=True)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send one request on a connection of its own. `body` is JSON, unless it is bytes."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with closing(HTTPConnection(self.host, self.port, timeout=30)) as connection:
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
        with closing(HTTPConnection(self.host, self.port, timeout=30)) as connection:
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
