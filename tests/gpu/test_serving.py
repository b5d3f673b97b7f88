"""A worker on a GPU behind its socket: clients that leave, stops and characters that tokens cut, health under load, an
end in time. Steps begin here before the ones ahead have been read, so what ends a decode is found a step late.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")
pytest.importorskip("pydantic", reason="did not run: what serving needs is not installed")

from decodepool_worker.engine.open import Wanted, open_model
from decodepool_worker.serving.loading import served_from

from tests.cli.processes import Running, free_port
from tests.serving.byte_model import TOKENIZER_ROWS, byte_vocabulary
from tests.serving.http_client import events
from tests.serving.live_server import Server, live_server
from tests.serving.test_disconnects import LEAVE, send
from tests.tiny.models import Tiny, write

if TYPE_CHECKING:
    import socket

    from decodepool_kernels.cuda.device import Gpu

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

CONTEXT, SESSIONS = 4000, 64
HOT: dict[str, Any] = {"temperature": 1.5, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write(Tiny(weight_type="Q8_0", head_length=64, vocabulary=TOKENIZER_ROWS), path)
    return path


@pytest.fixture(scope="module")
def server(gpu: Gpu, model: Path) -> Iterator[Server]:
    """Serves single bytes; what it draws are bytes at random."""
    loaded = open_model(model, Wanted(CONTEXT, SESSIONS, device="cuda"))
    spelled = replace(loaded, metadata={**loaded.metadata, **byte_vocabulary()})
    with live_server(lambda service: served_from(spelled, "bytes", service)) as server:
        yield server


@pytest.fixture(autouse=True)
def nobody_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").close_all()


def decoded(server: Server, session: str, **body: Any) -> Any:
    return server.post(f"/v1/sessions/{session}/decode", {**HOT, **body})


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_frees_its_row_and_the_session_goes_on(
    server: Server, stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    """A28, the client is gone and the session decodes on."""
    session = server.create("A B C", seed=3)
    raw = send(server, f"/v1/sessions/{session}/decode", {**HOT, "stream": stream})
    server.until(lambda: server.busy() == 1)
    leave(raw)
    assert server.until(lambda: server.busy() == 0) < 1
    tokens = server.get(f"/v1/sessions/{session}/tokens")["tokens"][5:]
    assert len(tokens) < CONTEXT - 5, "it ran to the end of its context"
    tokens += decoded(server, session, max_tokens=8)["tokens"]
    assert tokens == decoded(server, server.create("A B C", seed=3), max_tokens=len(tokens))["tokens"]


@pytest.mark.parametrize("seed", range(20))
def test_characters_are_never_cut_and_no_token_is_lost(server: Server, seed: int) -> None:
    """A30, characters cut between events; invalid bytes."""
    whole = decoded(server, server.create("A", seed=seed), max_tokens=80)
    seen = server.stream(server.create("A", seed=seed), **HOT, max_tokens=80)
    assert [each["data"]["token"] for each in seen[:-1]] == whole["tokens"]
    assert "".join(each["data"]["text"] for each in seen) == whole["text"]
    assert "\ufffd" in whole["text"], "bytes at random are not all text"


@pytest.mark.parametrize("seed", range(6))
def test_a_stop_across_tokens_ends_text_and_session_where_it_is_complete(server: Server, seed: int) -> None:
    """A31, stop strings across tokens: nothing past the stop is told, kept, or missed afterwards."""
    free = decoded(server, server.create("A", seed=seed), max_tokens=300)
    place, stop = pair_of_letters(free["text"])
    sessions = [server.create("A", seed=seed) for _ in range(2)]
    whole = decoded(server, sessions[0], max_tokens=300, stop=stop)
    seen = server.stream(sessions[1], **HOT, max_tokens=300, stop=stop)
    assert whole["text"] == "".join(each["data"]["text"] for each in seen) == free["text"][:place]
    assert (whole["finish_reason"], whole["stop"]) == ("stop", stop)
    kept = whole["tokens"]
    assert kept == free["tokens"][: len(kept)]
    assert server.post("/detokenize", {"tokens": kept})["text"] == free["text"][:place] + stop
    assert whole["length"] == seen[-1]["data"]["length"] == 1 + len(kept)
    for session in sessions:
        assert decoded(server, session, max_tokens=20)["tokens"] == free["tokens"][len(kept) : len(kept) + 20]


def pair_of_letters(text: str) -> tuple[int, str]:
    """Return two neighbouring characters of a token each that are together nowhere before, and where they stand."""
    for place in range(10, len(text) - 1):
        pair = text[place : place + 2]
        if pair.isascii() and pair.isprintable() and text.find(pair) == place:
            return place, pair
    raise AssertionError("no two characters in a row are whole")


def test_health_answers_at_once_while_everything_is_busy(server: Server) -> None:
    """A12, health answers starve: prompts of thousands, every session at once, long texts, scrapes."""

    def load(index: int) -> None:
        session = server.post("/v1/sessions", {"tokens": [(index + i) % 256 for i in range(3000)]}, 201)["id"]
        decoded(server, session, max_tokens=100, top_logprobs=5 if index % 8 == 0 else None)

    work = [threading.Thread(target=load, args=(index,)) for index in range(SESSIONS)]
    work += [
        threading.Thread(target=server.post, args=("/tokenize", {"text": text})) for text in ("a" * 200_000, "é" * 9)
    ]
    for thread in work:
        thread.start()
    slowest, polls = 0.0, 0
    while any(thread.is_alive() for thread in work):
        began = time.monotonic()
        server.get("/healthz")
        slowest, polls = max(slowest, time.monotonic() - began), polls + 1
        assert server.call("GET", "/metrics").status == 200
        time.sleep(0.02)
    assert polls > 5
    assert slowest < 1


@pytest.mark.parametrize(("tokens", "last"), [(3, "done"), (None, "error")], ids=["in time", "at the deadline"])
def test_a_worker_that_is_told_to_end_does_so_and_its_stream_has_a_last_event(
    model: Path, tmp_path: Path, tokens: int | None, last: str
) -> None:
    """A13, a pod that goes cuts live sessions."""
    port = free_port()
    options = [f"--context={CONTEXT}", "--sessions=2", f"--port={port}", "--device=cuda", "--drain-timeout=0.1"]
    running, body = Running(tmp_path, "serve", model, *options), {**HOT, "stream": True, "max_tokens": tokens}
    running.says("ready")
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/v1/sessions", json.dumps({"tokens": [1, 5, 7]}))
        session = json.loads(connection.getresponse().read())["id"]
        connection.request("POST", f"/v1/sessions/{session}/decode", json.dumps(body))
        answer = connection.getresponse()
        seen = answer.readline()
        running.signal()
        seen += answer.read()
    assert events(seen.decode())[-1]["event"] == last
    assert running.end(within=10) == 0
