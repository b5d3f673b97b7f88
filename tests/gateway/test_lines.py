"""What the gateway says in its log: why it refused, and which worker gets no sessions."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from decodepool_gateway.placements import QueueLimits
from decodepool_sizing.log_lines import fields_of
from decodepool_sizing.session_ids import tag_of, worker_tag

from tests.cli.processes import free_port
from tests.gateway.live_gateway import LiveGateway, live_gateway
from tests.gateway.processes import answers, until
from tests.serving.http_client import Client
from tests.serving.live_server import Live, live_worker

HTTP = "decodepool.gateway.http"


@pytest.fixture
def worker() -> Iterator[Live]:
    with live_worker(tag=worker_tag("a")) as running:
        yield running


@pytest.fixture
def gateway(worker: Live) -> Iterator[LiveGateway]:
    with live_gateway([("a", worker.url)]) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/v1/sessions", {"prompt": "x", "temperature": "hot"}, 400, ("invalid_value", "temperature")),
        ("/v1/sessions/s-0123456789-x/append", {"tokens": [65]}, 404, ("unknown_session", None)),
        ("/v1/nothing", {}, 404, ("unknown_route", None)),
    ],
    ids=["the worker's", "its own", "no route"],
)
def test_a_refusals_line_has_its_reason(
    gateway: LiveGateway,
    caplog: pytest.LogCaptureFixture,
    path: str,
    body: dict[str, Any],
    status: int,
    reason: tuple[str, str | None],
) -> None:
    caplog.set_level(logging.INFO, HTTP)
    gateway.post(path, body, status)
    until(lambda: lines(caplog, HTTP), 5)
    fields = fields_of(lines(caplog, HTTP)[-1])
    assert (fields["code"], fields.get("param")) == reason


def test_a_plain_line_has_the_reason_at_its_end(worker: Live, tmp_path: Path) -> None:
    port = free_port()
    words = ["--pool=p", "--host=127.0.0.1", f"--port={port}", f"--worker=a={worker.url}", "--log-plain"]
    log = tmp_path / "log"
    with log.open("wb") as err:
        process = subprocess.Popen([sys.executable, "-m", "decodepool_gateway", *words], stderr=err)
    try:
        client = Client(f"http://127.0.0.1:{port}", port)
        until(lambda: answers(client, "/readyz"))
        client.post("/v1/sessions", {"prompt": "x", "temperature": "hot"}, 400)
        until(lambda: "POST /v1/sessions 400 seconds=" in log.read_text(), 5)
    finally:
        process.kill()
        process.wait()
    (line,) = [line for line in log.read_text().splitlines() if "POST /v1/sessions" in line]
    assert line.endswith(" code=invalid_value param=temperature")


@pytest.mark.parametrize("tag", [None, worker_tag("elsewhere")], ids=["no tag", "another's"])
def test_a_worker_that_does_not_mark_its_sessions_gets_none_and_one_warning(
    worker: Live, caplog: pytest.LogCaptureFixture, tag: str | None
) -> None:
    with live_worker(tag=tag) as unmarked, live_gateway([("a", worker.url), ("b", unmarked.url)]) as gateway:
        until(lambda: lines(caplog, "decodepool.gateway"), 10)
        made = [gateway.create() for _ in range(4)]
        assert {tag_of(session) for session in made} == {worker_tag("a")}
        told = {each["name"]: each["state"] for each in gateway.get("/v1/capacity")["workers"]}
        assert told == {"a": "ready", "b": "unready"}
        polled = gateway.gateway.pool.workers[1].report
        until(lambda: gateway.gateway.pool.workers[1].report is not polled, 5)
        (warning,) = lines(caplog, "decodepool.gateway")
    assert warning.levelno == logging.WARNING
    assert "worker b does not mark its sessions for this name" in warning.getMessage()
    assert warning.getMessage().endswith("start it with --worker-tag-of b")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/sessions", {"prompt": "A"}),
        ("POST", "/v1/completions", {"model": "bytes", "prompt": "A"}),
        ("GET", "/v1/models", None),
        ("GET", "/readyz", None),
    ],
)
def test_before_workers_that_do_not_mark_their_sessions_a_refusal_says_how_to_start_them(
    caplog: pytest.LogCaptureFixture, method: str, path: str, body: Any
) -> None:
    limits = QueueLimits(seconds=0.1)
    with live_worker() as unmarked, live_gateway([("b", unmarked.url)], limits, ready=False) as gateway:
        until(lambda: lines(caplog, "decodepool.gateway"), 10)
        answer = gateway.call(method, path, body)
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (503, "no_ready_worker")
    assert error["message"].endswith(
        "; worker b does not mark its sessions for this name and gets none: start it with --worker-tag-of b"
    )


def lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == logger]
