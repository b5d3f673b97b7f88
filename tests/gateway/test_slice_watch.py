"""The watch of a Service's workers: what it hears, and that it hears on whatever the API server does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence

import pytest
from decodepool_gateway.discovery import slice_watch
from decodepool_gateway.discovery.slice_watch import EndpointSlices
from decodepool_gateway.workers import WorkerAddress
from kubernetes import client

from tests.gateway.slice_server import CLOSE, SliceServer, slice_server


@pytest.fixture
def api() -> Iterator[SliceServer]:
    with slice_server() as server:
        yield server


class Heard:
    """What discovery told of last: each worker's name, `!` where it is not ready, `-` where it drains."""

    def __init__(self) -> None:
        self.last: list[str] | None = None
        self.count = 0

    def tell(self, workers: Sequence[WorkerAddress]) -> None:
        self.count += 1
        self.last = [each.name + "!" * (not each.ready) + "-" * each.draining for each in workers]

    async def until(self, last: list[str] | None, seconds: float = 5.0) -> None:
        async with asyncio.timeout(seconds):
            while self.last != last:  # noqa: ASYNC110  it is told by another thread's watch
                await asyncio.sleep(0.01)


def watching(api: SliceServer, test: Callable[[Heard], Coroutine[None, None, None]]) -> None:
    """Run a test beside a watch."""

    async def run() -> None:
        settings = client.Configuration(host=f"http://127.0.0.1:{api.port}")
        settings.retries = False
        heard = Heard()
        source = EndpointSlices("ns", "pool-workers", client.DiscoveryV1Api(client.ApiClient(settings)))
        task = asyncio.create_task(source.run(heard.tell))
        try:
            await test(heard)
        finally:
            task.cancel()

    asyncio.run(run())


def test_it_lists_and_then_follows(api: SliceServer) -> None:
    async def test(heard: Heard) -> None:
        await heard.until(["pod-a"])
        api.put("b", ready=False)
        await heard.until(["pod-a", "pod-b!"])
        api.put("b")
        await heard.until(["pod-a", "pod-b"])
        api.put("a", ready=False, terminating=True)
        await heard.until(["pod-a!-", "pod-b"])
        api.remove("a")
        await heard.until(["pod-b"])
        assert api.lists == 1
        assert api.watches[0]["resourceVersion"] == ["2"]

    api.put("a")
    api.events.get()
    watching(api, test)


def test_an_empty_pool_is_told_of_too(api: SliceServer) -> None:
    async def test(heard: Heard) -> None:
        await heard.until([])

    watching(api, test)


def test_a_watch_that_ends_goes_on_from_where_it_was(api: SliceServer) -> None:
    async def test(heard: Heard) -> None:
        await heard.until([])
        api.put("a")
        await heard.until(["pod-a"])
        api.events.put(CLOSE)
        api.put("b")
        await heard.until(["pod-a", "pod-b"])
        assert api.lists == 1
        assert [each["resourceVersion"] for each in api.watches] == [["1"], ["2"]]
        assert api.watches[0]["timeoutSeconds"] == [str(slice_watch.WATCH_SECONDS)]

    watching(api, test)


def test_a_silent_watch_is_given_up(api: SliceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stands and nothing comes, not even the end that was asked for."""
    monkeypatch.setattr(slice_watch, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(slice_watch, "FIRST_PAUSE_SECONDS", 0.05)

    async def test(heard: Heard) -> None:
        await heard.until([])
        api.silent = True
        api.put("a")
        await heard.until(["pod-a"])
        assert api.lists >= 2

    watching(api, test)


def test_a_version_that_is_too_old_is_answered_with_a_new_list(api: SliceServer) -> None:
    async def test(heard: Heard) -> None:
        await heard.until([])
        api.forgets = api.silent = True
        api.put("a")
        api.events.put(CLOSE)
        await heard.until(["pod-a"])
        assert api.lists == 2

    watching(api, test)


def test_while_the_api_server_is_away_the_last_workers_stay(
    api: SliceServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slice_watch, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(slice_watch, "LAST_PAUSE_SECONDS", 0.1)

    async def test(heard: Heard) -> None:
        await heard.until(["pod-a"])
        told = heard.count
        api.fails = True
        api.events.put(CLOSE)
        await asyncio.sleep(0.5)
        assert heard.last == ["pod-a"]
        assert heard.count == told
        assert 2 <= caplog.text.count("cannot watch") <= 12
        api.silent, api.fails = True, False
        api.put("b")
        await heard.until(["pod-a", "pod-b"])

    api.put("a")
    api.events.get()
    watching(api, test)


def test_from_time_to_time_everything_is_listed_anew(api: SliceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that was lost is not lost for good."""
    monkeypatch.setattr(slice_watch, "RELIST_WATCHES", 2)

    async def test(heard: Heard) -> None:
        await heard.until([])
        api.silent = True
        api.put("a")
        api.events.put(CLOSE)
        api.events.put(CLOSE)
        await heard.until(["pod-a"])

    watching(api, test)
