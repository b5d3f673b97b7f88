"""The step loop's thread and its door to asyncio, on a real event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from decodepool_worker.engine.rows import Outcome, Span
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.errors import Draining, EngineFailed, SessionBusy
from decodepool_worker.sessions.events import EndEvent, TokenEvent
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.session import SessionState
from decodepool_worker.sessions.stats import StepReport
from decodepool_worker.sessions.stream import DecodeStream
from decodepool_worker.sessions.worker import LAST_EVENTS_SECONDS, Worker

from tests.sessions.checking_engine import GREEDY, CheckingEngine, lone_tokens, prompt


class GatedEngine(CheckingEngine):
    """Steps only while its gate is open, and takes `step_seconds` for it."""

    step_seconds = 0.0

    def __init__(self) -> None:
        super().__init__(page_count=40, slot_count=8, max_step_rows=128)
        self.gate = threading.Event()
        self.gate.set()

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        assert self.gate.wait(20)
        time.sleep(self.step_seconds)
        return super().step(spans)


def with_worker(scenario: Callable[[Worker, GatedEngine], Awaitable[None]]) -> None:
    async def main() -> None:
        engine = GatedEngine()
        worker = Worker(Residence(engine, context_tokens=256, sessions=8))
        worker.start()
        try:
            await scenario(worker, engine)
        finally:
            engine.gate.set()
            assert await worker.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


async def read(stream: DecodeStream) -> tuple[list[int], EndEvent]:
    tokens: list[int] = []
    async for event in stream:
        if isinstance(event, EndEvent):
            return tokens, event
        tokens.append(event.token)
    raise AssertionError("a stream without an end")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  the thread has no event to wait for
            await asyncio.sleep(0.001)


def idle(worker: Worker) -> bool:
    stats = worker.stats()
    return stats.sessions[SessionState.DECODING] == stats.sessions[SessionState.PREFILLING] == 0


def test_sixteen_streams_at_once_are_each_that_of_a_lone_session() -> None:
    async def one(worker: Worker, variant: int) -> None:
        session = await worker.create(prompt(10 + 9 * variant, variant), sampling=GREEDY)
        tokens, end = await read(await worker.decode(session.id, DecodeRequest(max_tokens=30)))
        assert tokens == lone_tokens(prompt(10 + 9 * variant, variant), 30)
        assert (end.finish_reason, end.length) == ("length", 40 + 9 * variant)
        await worker.close(session.id)

    async def scenario(worker: Worker, _: GatedEngine) -> None:
        for begin in (0, 8):
            await asyncio.gather(*(one(worker, variant) for variant in range(begin, begin + 8)))
        assert await worker.infos() == []

    with_worker(scenario)


def test_refusals_reach_the_caller_before_any_event() -> None:
    async def scenario(worker: Worker, engine: GatedEngine) -> None:
        session = await worker.create([1])
        await until(lambda: idle(worker))
        engine.gate.clear()
        stream = await worker.decode(session.id, DecodeRequest())
        asyncio.get_running_loop().call_later(0.02, engine.gate.set)
        with pytest.raises(SessionBusy):
            await worker.decode(session.id, DecodeRequest())
        stream.close()

    with_worker(scenario)


def test_leaving_a_stream_frees_its_row() -> None:
    async def scenario(worker: Worker, engine: GatedEngine) -> None:
        engine.step_seconds = 0.002
        session = await worker.create(prompt(9), sampling=GREEDY)
        async with await worker.decode(session.id, DecodeRequest()) as stream:
            seen = [await anext(stream) for _ in range(3)]
        await until(lambda: idle(worker))
        length = (await worker.info(session.id)).length
        assert 9 + len(seen) <= length < 256
        rest, _ = await read(await worker.decode(session.id, DecodeRequest(max_tokens=5)))
        assert (await worker.tokens(session.id))[9:] == lone_tokens(prompt(9), length - 9 + 5)
        assert rest == lone_tokens(prompt(9), length - 9 + 5)[-5:]

    with_worker(scenario)


def test_a_task_cancelled_while_it_waits_for_a_token_frees_its_row() -> None:
    async def scenario(worker: Worker, engine: GatedEngine) -> None:
        session = await worker.create([1])
        await until(lambda: idle(worker))
        engine.gate.clear()

        async def consume() -> None:
            async with await worker.decode(session.id, DecodeRequest()) as stream:
                await read(stream)

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.gate.set()
        await until(lambda: idle(worker))
        assert (await worker.info(session.id)).length < 256

    with_worker(scenario)


CALLS: dict[str, Callable[[Worker, str], Awaitable[object]]] = {
    "create": lambda worker, _: worker.create([1]),
    "fork": lambda worker, session_id: worker.fork(session_id, n=3),
    "decode": lambda worker, session_id: worker.decode(session_id, DecodeRequest()),
}


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("moment", ["before it ran", "after it ran", "after it was answered"])
def test_what_a_caller_asked_for_and_left_is_undone(verb: str, moment: str) -> None:
    async def scenario(worker: Worker, engine: GatedEngine) -> None:
        engine.step_seconds = 0.002
        session, other = await worker.create(prompt(9)), await worker.create([1])
        await until(lambda: idle(worker))
        stream = await worker.decode(other.id, DecodeRequest(max_tokens=20))
        if moment == "before it ran":
            engine.gate.clear()
            await asyncio.sleep(0.01)
        task = asyncio.ensure_future(CALLS[verb](worker, session.id))
        await asyncio.sleep(0)
        if moment != "before it ran":
            time.sleep(0.02)  # noqa: ASYNC251  the answer comes while the event loop stands still
        if moment == "after it was answered":
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.gate.set()
        await read(stream)
        await until(lambda: idle(worker))
        assert [info.id for info in await worker.infos()] == [session.id, other.id]
        assert (await worker.info(session.id)).length < 256

    with_worker(scenario)


def test_a_stream_whose_reader_is_gone_can_be_resumed() -> None:
    async def scenario(worker: Worker, engine: GatedEngine) -> None:
        engine.step_seconds = 0.002
        session = await worker.create(prompt(9), sampling=GREEDY)
        async with await worker.decode(session.id, DecodeRequest(max_tokens=40)) as stream:
            first = [await anext(stream) for _ in range(4)]
        last = first[-1]
        assert isinstance(last, TokenEvent)
        rest, end = await read(await worker.decode(session.id, DecodeRequest(), resume_after=last.position))
        tokens = [event.token for event in first if isinstance(event, TokenEvent)] + rest
        assert tokens == lone_tokens(prompt(9), 40)
        assert end.finish_reason == "length"

    with_worker(scenario)


def test_a_fault_of_the_engine_ends_streams_and_liveness() -> None:
    async def scenario(worker: Worker, engine: GatedEngine) -> None:
        session = await worker.create([1])
        stream = await worker.decode(session.id, DecodeRequest())
        engine.broken = True
        _, end = await read(stream)
        assert end.finish_reason == "error"
        assert "illegal memory access" in (end.error or "")
        assert "illegal memory access" in (worker.stalled(5) or "")
        with pytest.raises(EngineFailed):
            await worker.create([1])

    with_worker(scenario)


def test_a_fault_of_our_own_is_told_like_one_of_the_engine() -> None:
    def broken(report: StepReport) -> None:
        raise KeyError("bucket")

    async def main() -> None:
        worker = Worker(Residence(GatedEngine(), context_tokens=256, sessions=8, observe_step=broken))
        worker.start()
        await worker.create([1])
        await until(lambda: worker.stalled(5) is not None)
        assert "KeyError: 'bucket'" in (worker.stalled(5) or "")
        with pytest.raises(EngineFailed, match="bucket"):
            await worker.create([1])
        assert await worker.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_step_that_hangs_fails_liveness_and_an_idle_worker_does_not() -> None:
    async def scenario(worker: Worker, engine: GatedEngine) -> None:
        session = await worker.create([1])
        await until(lambda: worker.pulse().turn_seconds is None)
        await asyncio.sleep(0.1)
        assert worker.stalled(0.05) is None
        engine.gate.clear()
        stream = await worker.decode(session.id, DecodeRequest(max_tokens=1))
        await until(lambda: worker.stalled(0.05) is not None)
        assert "a step has lasted" in (worker.stalled(0.05) or "")
        engine.gate.set()
        await read(stream)
        await until(lambda: worker.stalled(0.05) is None)

    with_worker(scenario)


def test_a_drain_waits_for_streams_and_refuses_new_work() -> None:
    async def scenario(worker: Worker, _: GatedEngine) -> None:
        session = await worker.create([1], sampling=GREEDY)
        stream = await worker.decode(session.id, DecodeRequest(max_tokens=50))
        drain = asyncio.create_task(worker.drain(10))
        tokens, end = await read(stream)
        assert tokens == lone_tokens([1], 50)
        assert end.finish_reason == "length"
        assert await drain
        with pytest.raises(Draining):
            await worker.create([1])

    with_worker(scenario)


def test_a_drain_of_an_idle_worker_ends_at_once() -> None:
    async def scenario(worker: Worker, _: GatedEngine) -> None:
        await worker.create([1])
        async with asyncio.timeout(1):
            assert await worker.drain(60)

    with_worker(scenario)


def test_a_stream_beyond_the_drains_deadline_ends_with_an_error_that_says_so() -> None:
    async def scenario(worker: Worker, engine: GatedEngine) -> None:
        engine.step_seconds = 0.01
        session = await worker.create([1], sampling=GREEDY)
        stream = await worker.decode(session.id, DecodeRequest())
        assert not await worker.drain(0.05)
        tokens, end = await read(stream)
        assert tokens == lone_tokens([1], len(tokens))
        assert end.finish_reason == "error"
        assert end.error == "the worker is draining, and its deadline of 0.05 s has passed"

    with_worker(scenario)


@pytest.mark.parametrize("moment", ["before the drain", "during the drain"])
def test_a_step_that_hangs_does_not_hold_a_drain_beyond_its_deadline(moment: str) -> None:
    async def scenario(worker: Worker, engine: GatedEngine) -> None:
        session = await worker.create([1], sampling=GREEDY)
        engine.step_seconds = 0.002
        stream = await worker.decode(session.id, DecodeRequest())
        await anext(stream)
        if moment == "before the drain":
            engine.gate.clear()
            await asyncio.sleep(0.05)
        else:
            asyncio.get_running_loop().call_later(0.1, engine.gate.clear)
        began = time.monotonic()
        assert not await worker.drain(0.2)
        assert 0.2 <= time.monotonic() - began < 0.2 + LAST_EVENTS_SECONDS + 1
        engine.gate.set()
        _, end = await read(stream)
        assert end.error == "the worker is draining, and its deadline of 0.2 s has passed"
        with pytest.raises(Draining):
            await worker.create([1])

    with_worker(scenario)


def test_stopping_ends_a_stream_that_waits_and_refuses_what_comes_after() -> None:
    async def main() -> None:
        engine = GatedEngine()
        worker = Worker(Residence(engine, context_tokens=256, sessions=8))
        worker.start()
        session = await worker.create([1])
        await until(lambda: idle(worker))
        engine.gate.clear()
        stream = await worker.decode(session.id, DecodeRequest())
        reader = asyncio.create_task(read(stream))
        asyncio.get_running_loop().call_later(0.05, engine.gate.set)
        began = time.monotonic()
        assert await worker.stop()
        _, end = await reader
        assert (end.finish_reason, end.error) == ("error", "the worker is stopping")
        assert time.monotonic() - began < 3
        with pytest.raises(Draining, match="stopped"):
            await worker.create([1])
        stream.close()

    asyncio.run(main())


def test_a_step_that_never_ends_does_not_hold_the_stop() -> None:
    async def main() -> None:
        engine = GatedEngine()
        worker = Worker(Residence(engine, context_tokens=256, sessions=8))
        worker.start()
        engine.gate.clear()
        await worker.create([1])
        assert not await worker.stop(timeout_seconds=0.05)
        engine.gate.set()
        assert await worker.stop()

    asyncio.run(main())


def test_a_worker_that_never_started_stops() -> None:
    async def main() -> None:
        assert await Worker(Residence(GatedEngine(), context_tokens=256, sessions=8)).stop()

    asyncio.run(main())


def test_a_turn_delivers_once_however_many_streams_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(worker: Worker, engine: GatedEngine) -> None:
        sessions = [await worker.create(prompt(5, i)) for i in range(8)]
        await until(lambda: idle(worker))
        engine.gate.clear()
        streams = [await asyncio.wait_for(worker.decode(sessions[0].id, DecodeRequest(max_tokens=20)), 5)]
        others = [asyncio.create_task(worker.decode(s.id, DecodeRequest(max_tokens=20))) for s in sessions[1:]]
        await asyncio.sleep(0.02)
        loop, calls = asyncio.get_running_loop(), 0
        original = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += threading.current_thread().name == "decodepool-steps"
            return original(*args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        steps = len(engine.steps)
        engine.gate.set()
        streams += await asyncio.gather(*others)
        await asyncio.gather(*(read(stream) for stream in streams))
        assert calls <= len(engine.steps) - steps + 2

    with_worker(scenario)


def test_an_idle_worker_burns_nothing() -> None:
    async def scenario(worker: Worker, _: GatedEngine) -> None:
        await worker.create([1])
        await until(lambda: idle(worker))
        began = time.process_time()
        await asyncio.sleep(0.2)
        assert time.process_time() - began < 0.05

    with_worker(scenario)
