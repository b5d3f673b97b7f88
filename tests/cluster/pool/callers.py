"""Clients of a pool that stream one short answer after the other, and count how each of them ended."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.cluster.pool.pools import Pool
from tests.serving.http_client import Client, events

PROMPT = [5, 17, 40, 3]
STREAM_TOKENS = 200
PAUSE_SECONDS = 0.3


@dataclass
class Callers:
    """A stream that began must be whole, to the token; who is refused asks again. All else is `broken`."""

    client: Client
    tokens: list[int]
    whole: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def call_again_and_again(self) -> None:
        """Call until it is over."""
        while not self.over.wait(PAUSE_SECONDS):
            try:
                self._call()
            except Exception as error:
                self.broken.append(repr(error))

    def _call(self) -> None:
        made = self.client.call("POST", "/v1/sessions", {"tokens": PROMPT})
        if made.status != 201:
            self.refused[f"session {made.status} {made.json['error']['code']}"] += 1
            return
        path = f"/v1/sessions/{made.json['id']}"
        body = {"max_tokens": STREAM_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
        answer = self.client.call("POST", f"{path}/decode", body)
        if answer.status != 200:
            self.refused[f"stream {answer.status} {answer.json['error']['code']}"] += 1
            return
        told = events(answer.text)
        tokens = [each["data"]["token"] for each in told if each["event"] == "token"]
        if told[-1]["event"] == "done" and tokens == self.tokens:
            self.whole += 1
        else:
            self.broken.append(f"{len(tokens)} tokens, then {told[-1]}")
        self.client.call("DELETE", path)


@contextmanager
def calling(pool: Pool) -> Iterator[Callers]:
    """Have two clients of a ready pool's endpoint call for a while."""
    client = pool.endpoint()
    session = client.post("/v1/sessions", {"tokens": PROMPT}, 201)["id"]
    tokens = client.decode(session, max_tokens=STREAM_TOKENS, ignore_eos=True)["tokens"]
    client.call("DELETE", f"/v1/sessions/{session}")
    callers = Callers(client, tokens)
    threads = [threading.Thread(target=callers.call_again_and_again) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield callers
    finally:
        callers.over.set()
        for thread in threads:
            thread.join()
