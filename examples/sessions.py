"""The session API with nothing but Python: create, stream, fork, go on.

    decodepool serve MODEL.gguf --context 2048 &
    python examples/sessions.py [http://127.0.0.1:8000]     without a URL: port PORT of this machine, 8000 by default

A session stays resident between calls, so each call sends what is new and nothing of what was before. A fork shares its
parent's pages. What a session draws depends on its tokens and its seed alone: the last lines show that two forks with
one seed say the same, in whatever company they are decoded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

QUESTION = "What is the capital of France?"


def call(url: str, body: dict[str, Any] | None = None, method: str | None = None) -> Any:
    """Send JSON and return the answer's; HTTPError where the worker refuses."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read() or b"null")


def stream(url: str, **body: Any) -> Iterator[dict[str, Any]]:
    """Decode as server-sent events and yield their data as it comes: a token each, then the end."""
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/decode", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))


def url(text: str) -> str:
    """Return an http URL as it is; ValueError for what is none, or has no port that can be."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or parts.port == 0:
        raise ValueError(text)
    return text


def server_url() -> str:
    """Return the worker's URL from the command line, or the one of `PORT` here, as `make demo` reads it."""
    here = f"http://127.0.0.1:{os.environ.get('PORT', '8000')}"
    parser = argparse.ArgumentParser(description="The session API with nothing but Python.")
    parser.add_argument(
        "server", type=url, nargs="?", default=here, help="the worker's URL (default: %(default)s, by PORT)"
    )
    server: str = parser.parse_args().server
    return server


def main(server: str) -> None:
    """Talk to a worker."""
    sessions = f"{server}/v1/sessions"
    parent = call(sessions, {"messages": [{"role": "user", "content": QUESTION}], "seed": 7})
    print(f"{QUESTION}\n")
    for event in stream(f"{sessions}/{parent['id']}", max_tokens=64, temperature=0):
        print(event.get("text", ""), end="", flush=True)
    length = call(f"{sessions}/{parent['id']}")["length"]
    print(f"\n\n{length} tokens are resident. Two forks are asked to go on, drawing with the parent's seed:\n")

    forks = call(f"{sessions}/{parent['id']}/fork", {"n": 2})["sessions"]
    said = []
    for fork in forks:
        more = [{"role": "user", "content": "And what is it famous for?"}]
        call(f"{sessions}/{fork['id']}/append", {"messages": more})
        said.append(call(f"{sessions}/{fork['id']}/decode", {"max_tokens": 48, "temperature": 0.8}))
        print(f"{fork['id']}: {said[-1]['text']}\n")
    assert said[0]["tokens"] == said[1]["tokens"]
    print("They drew the same tokens.")

    for session in (parent, *forks):
        call(f"{sessions}/{session['id']}", method="DELETE")


if __name__ == "__main__":
    address = server_url()
    try:
        main(address)
    except urllib.error.HTTPError as refusal:
        sys.exit(f"{address} refuses: {refusal.read().decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"no worker answers at {address}: {getattr(error, 'reason', error)}")
