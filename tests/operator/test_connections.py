"""Any pod may connect to the operator's ports. However many do, it answers who asks, and holds little for the rest."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from decodepool_operator import connections
from decodepool_operator.connections import Connections
from decodepool_operator.shell import health as probes
from decodepool_operator.shell.health import Health
from decodepool_operator.shell.metrics import Metrics
from decodepool_operator.webhook import server as webhook
from decodepool_operator.webhook.injection import Injected
from decodepool_operator.webhook.server import WebhookServer

from tests.operator.test_webhook_certificates import (
    HOST,
    REVIEW,
    asked,
    free_port,
    keeper,
    listening,
    trusting_session,
    with_the_charts_secret,
)

MOST = 16
CROWD = 20 * MOST
CROWD_MAY_HOLD_BYTES = 48 << 20
ANSWER_SECONDS = 1.0
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def over_tls(port: int, data: bytes = b"") -> socket.socket:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    return saying(anybody.wrap_socket(connected(port)), data)


def saying(made: socket.socket, data: bytes) -> socket.socket:
    with suppress(OSError):  # it was closed meanwhile
        made.sendall(data)
    return made


COMING = {
    "TCP": connected,
    "HTTP without TLS": lambda port: saying(connected(port), HEAD),
    "TLS": over_tls,
    "half a head": lambda port: over_tls(port, HEAD),
    "half a body elsewhere": lambda port: over_tls(port, HEAD + b"\r\n{"),
    "a long header": lambda port: over_tls(port, HEAD + b"A: " + b"b" * 20_000),
    "nonsense": lambda port: over_tls(port, b"not HTTP\r\n\r\n"),
}


@contextmanager
def without_garbage_collector() -> Iterator[None]:
    """It looks at old objects seldom, where there are many: a connection's memory is not to wait for that."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def is_closed(raw: socket.socket) -> bool:
    try:
        return raw.recv(1) == b""
    except OSError:  # by a reset, or in the middle of TLS
        return True


@asynccontextmanager
async def a_webhook() -> AsyncIterator[tuple[int, str, aiohttp.ClientSession]]:
    """Serve, and tell the port, what the API server posts to, and a session that does."""
    port, threads = free_port(), ThreadPoolExecutor(1)
    server = WebhookServer(keeper(with_the_charts_secret()), lambda *_: Injected(()), port, threads)
    task = asyncio.create_task(server.run())
    try:
        await listening(port)
        assert server._loaded is not None
        async with await trusting_session(server._loaded) as session:
            yield port, f"https://{HOST}:{port}{server._loaded.path.decode()}", session
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        threads.shutdown()


async def answered_in_time(session: aiohttp.ClientSession, url: str) -> None:
    began = time.monotonic()
    status, _ = await asked(session, url, REVIEW)
    assert status == 200
    assert time.monotonic() - began < ANSWER_SECONDS


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "MOST_STRANGERS", MOST)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("come", COMING.values(), ids=COMING)
def test_a_crowd_that_stays_is_held_small_and_the_api_server_gets_through(come: Any) -> None:
    async def main() -> None:
        async with a_webhook() as (port, url, session):
            await answered_in_time(session, url)
            before = resident_bytes()
            with without_garbage_collector(), ExitStack() as crowd:
                for _ in range(CROWD):
                    crowd.enter_context(closing(await asyncio.to_thread(come, port)))
                await answered_in_time(session, url)
                assert resident_bytes() - before < CROWD_MAY_HOLD_BYTES

    asyncio.run(main())


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("come", COMING.values(), ids=COMING)
def test_those_that_leave_again_leave_nothing(come: Any) -> None:
    async def main() -> None:
        async with a_webhook() as (port, url, session):
            await answered_in_time(session, url)
            before = resident_bytes()
            with without_garbage_collector():
                for _ in range(CROWD):
                    (await asyncio.to_thread(come, port)).close()
                await answered_in_time(session, url)
                assert resident_bytes() - before < CROWD_MAY_HOLD_BYTES

    asyncio.run(main())


@contextmanager
def endless_crowd(port: int) -> Iterator[None]:
    """Connect as fast as can be, and never close, for the time of the block."""
    over = threading.Event()
    held: list[socket.socket] = []

    def come() -> None:
        while not over.is_set():
            held.append(connected(port))

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for each in held:
            each.close()


@pytest.mark.usefixtures("few")
def test_the_api_server_gets_through_a_crowd_that_keeps_coming() -> None:
    async def main() -> None:
        async with a_webhook() as (port, url, session):
            with endless_crowd(port):
                await asyncio.sleep(0.2)
                await answered_in_time(session, url)

    asyncio.run(main())


@pytest.mark.usefixtures("few")
def test_the_api_servers_connection_makes_room_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with a_webhook() as (port, url, session):
            await asked(session, url, REVIEW)
            [kept] = [each for queue in session.connector._conns.values() for each, _ in queue]  # type: ignore[union-attr]
            with ExitStack() as crowd:
                for _ in range(2 * MOST):
                    crowd.enter_context(closing(await asyncio.to_thread(over_tls, port)))
                await answered_in_time(session, url)
                assert kept.is_connected()

    with caplog.at_level(logging.WARNING, "decodepool_operator"):
        asyncio.run(main())
    assert sum("makes room" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("come", [connected, lambda port: over_tls(port, HEAD)], ids=["TCP", "half a head"])
def test_a_stranger_has_its_time_and_no_more(come: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 0.5)

    async def main() -> None:
        async with a_webhook() as (port, url, session):
            await asked(session, url, REVIEW)
            with closing(await asyncio.to_thread(come, port)) as stranger:
                assert await asyncio.to_thread(is_closed, stranger)
            await asked(session, url, REVIEW)

    asyncio.run(main())


def with_probes(check: Coroutine[Any, Any, None], port: int) -> None:
    async def main() -> None:
        served = Connections(probes.application(Health(60), Metrics()), port, MOST)
        await served.open()
        try:
            await check
        finally:
            await served.close()

    asyncio.run(main())


def test_a_probe_gets_through_a_crowd_and_its_connection_ends() -> None:
    port = free_port()

    async def check() -> None:
        with ExitStack() as crowd:
            first, *_ = [crowd.enter_context(closing(connected(port))) for _ in range(3 * MOST)]
            for path in ("healthz", "metrics"):
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://127.0.0.1:{port}/{path}") as answer,
                ):
                    assert (answer.status, answer.headers["Connection"]) == (200, "close")
            assert await asyncio.to_thread(is_closed, first)

    with_probes(check(), port)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_versions_of_ip_are_listened_to(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    port = free_port()

    async def check() -> None:
        with closing(await asyncio.to_thread(socket.create_connection, (host, port), 5)):
            return

    with_probes(check(), port)
