"""The door to asyncio: `Worker` turns awaits into commands of the step loop, and its sinks into streams.

A caller that goes away leaves nothing behind that runs or takes room. If its await is cancelled, sessions that it made
are closed and a decode that it began is ended; if it drops a stream, the decode is cancelled before the next step.
Appended tokens stay: who repeats an append says how long the session is to be before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from decodepool_worker.engine.rows import Sampling
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.errors import Draining
from decodepool_worker.sessions.pages import PageUse
from decodepool_worker.sessions.residence import DEFAULT_SAMPLING, Residence
from decodepool_worker.sessions.session import SessionInfo
from decodepool_worker.sessions.stats import Stats
from decodepool_worker.sessions.step_thread import Callback, Pulse, StepThread
from decodepool_worker.sessions.stream import DecodeStream

T = TypeVar("T")
logger = logging.getLogger(__name__)

LAST_EVENTS_SECONDS = 1.0
"""How long a drain whose deadline has passed waits for a step to end, so that streams get their last event."""

STOP_SECONDS = 8.0
"""How long a stop waits for the step under way. With the second before it, and four for connections after it, less than
the 15 s that a pod has beyond its drain's deadline.
"""


class Worker:
    """A residence on its own thread, for one asyncio event loop.

    Every coroutine may raise what the residence's verb of that name raises, `Draining` after `stop` too, and
    waits for one step at most. `stats`, `stalled` and `pulse` answer at once, whatever the engine does.
    """

    def __init__(self, residence: Residence, clock: Callable[[], float] = time.monotonic) -> None:
        self._residence = residence
        self._steps = StepThread(residence, self._deliver, clock)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the thread. Call it on the event loop that everything else will be awaited on."""
        self._loop = asyncio.get_running_loop()
        self._steps.start()

    # Verbs.

    async def create(
        self,
        tokens: Sequence[int],
        *,
        context_tokens: int | None = None,
        seed: int | None = None,
        sampling: Sampling = DEFAULT_SAMPLING,
    ) -> SessionInfo:
        """Admit a session; see `Residence.create`. Its prompt is evaluated in the background."""
        create = partial(self._residence.create, tokens, context_tokens=context_tokens, seed=seed, sampling=sampling)
        return await self._call(lambda: self._residence.info(create().id), lambda made: self._discard([made]))

    async def append(self, session_id: str, tokens: Sequence[int], length: int | None = None) -> SessionInfo:
        """Add tokens to a session; see `Residence.append`. They are evaluated in the background."""
        append = partial(self._residence.append, session_id, tokens, length)
        return await self._call(lambda: self._residence.info(append().id))

    async def fork(
        self, session_id: str, at: int | None = None, n: int = 1, seeds: Sequence[int | None] | None = None
    ) -> list[SessionInfo]:
        """Fork a session; see `Residence.fork`."""
        fork = partial(self._residence.fork, session_id, at, n, seeds)
        return await self._call(lambda: [self._residence.info(made.id) for made in fork()], self._discard)

    async def decode(self, session_id: str, request: DecodeRequest, resume_after: int | None = None) -> DecodeStream:
        """Begin a decode, or resume the last one after a position, as that one was asked for; see `Residence`.

        The stream must be read to its end or closed.
        """
        stream = DecodeStream(session_id, self._steps.post, self._leave)

        def begin() -> DecodeStream:
            if resume_after is None:
                self._residence.decode(session_id, request, stream.sink)
            else:
                self._residence.resume(session_id, resume_after, stream.sink)
            return stream

        return await self._call(begin, DecodeStream.close)

    async def cancel(self, session_id: str) -> bool:
        """Stop what a session is doing; see `Residence.cancel`."""
        return await self._call(partial(self._residence.cancel, session_id))

    async def close(self, session_id: str) -> None:
        """End a session; see `Residence.close`."""
        await self._call(partial(self._residence.close, session_id))

    # Questions.

    async def info(self, session_id: str) -> SessionInfo:
        """Describe a session."""
        return await self._call(partial(self._residence.info, session_id))

    async def infos(self) -> list[SessionInfo]:
        """Describe every live session, oldest first."""
        return await self._call(self._residence.infos)

    async def tokens(self, session_id: str) -> list[int]:
        """Copy a session's tokens."""
        return await self._call(partial(self._residence.tokens, session_id))

    async def page_uses(self) -> list[PageUse]:
        """Return the use of each physical page."""
        return await self._call(self._residence.page_uses)

    def stats(self) -> Stats:
        """Return the counts as of the last turn of the loop."""
        return self._steps.stats

    def pulse(self) -> Pulse:
        """Tell whether the thread lives and how long its present turn has lasted."""
        return self._steps.pulse()

    def stalled(self, limit_seconds: float) -> str | None:
        """Say why the worker makes no progress, for a liveness probe; None if it does, or has nothing to do."""
        if self._residence.fault is not None:
            return self._residence.fault
        pulse = self._steps.pulse()
        if not pulse.alive:
            return "the step loop has ended"
        if pulse.turn_seconds is not None and pulse.turn_seconds > limit_seconds:
            return f"a step has lasted {pulse.turn_seconds:.0f} s"
        return None

    # The end.

    async def drain(self, deadline_seconds: float) -> bool:
        """Refuse new work, and wait for the streams under way; True if they all ended before the deadline.

        Those that did not are ended with an error event, once the step they are in lets them: it is not waited for
        beyond `LAST_EVENTS_SECONDS`.
        """
        quiet: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            self._residence.begin_drain()
            self._steps.when_quiet(partial(_settle, quiet, None))

        self._steps.submit(begin)
        try:
            async with asyncio.timeout(deadline_seconds):
                await quiet
        except TimeoutError:
            await self._end_streams(f"the worker is draining, and its deadline of {deadline_seconds:g} s has passed")
            return False
        return True

    async def stop(self, timeout_seconds: float = STOP_SECONDS) -> bool:
        """End every stream with an error event, then the thread; False if the step it is in does not end in time.

        The engine is left open: close it afterwards.
        """
        self._submit_if_open(partial(self._residence.end_streams, "the worker is stopping"))
        self._steps.stop()
        return await asyncio.to_thread(self._steps.join, timeout_seconds)

    # Between the threads.

    async def _end_streams(self, error: str) -> None:
        """Have every stream ended with an error event; wait for that, but not for a step that hangs."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end() -> None:
            self._residence.end_streams(error)
            self._steps.post(partial(_settle, ended, None))

        self._steps.submit(end)
        await asyncio.wait([ended], timeout=LAST_EVENTS_SECONDS)

    async def _call(self, action: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Run `action` on the step loop's thread. `undo` is called with its result if nobody waits for it any more."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def command() -> None:
            if future.cancelled():
                return
            try:
                result = action()
            except Exception as error:  # the caller's to judge
                self._steps.post(partial(_reject, future, error))
            else:
                self._steps.post(partial(_settle, future, result, undo))

        self._steps.submit(command)
        try:
            return await future
        except asyncio.CancelledError:
            if undo is not None and future.done() and not future.cancelled() and future.exception() is None:
                undo(future.result())  # the result was on its way when the caller was cancelled
            raise

    def _deliver(self, results: Sequence[Callback]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_call_all, results)
        except RuntimeError:  # the event loop is closed: nobody is left to hear
            logger.warning("%d results came after the event loop had closed", len(results))

    def _leave(self, stream: DecodeStream) -> None:
        self._submit_if_open(partial(self._residence.leave, stream.session_id, stream.sink))

    def _discard(self, made: Sequence[SessionInfo]) -> None:
        for info in made:
            self._submit_if_open(partial(self._residence.discard, info.id, "its client left while it was made"))

    def _submit_if_open(self, command: Callback) -> None:
        with suppress(Draining):
            self._steps.submit(command)


def _settle(future: asyncio.Future[T], result: T, undo: Callable[[T], None] | None = None) -> None:
    if not future.done():
        future.set_result(result)
    elif undo is not None:
        undo(result)


def _reject(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _call_all(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback()
