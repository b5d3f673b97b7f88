"""The asyncio end of a decode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from decodepool_worker.sessions.events import EndEvent, TokenEvent
from decodepool_worker.sessions.step_thread import Callback

Event = TokenEvent | EndEvent


class DecodeStream:
    """The events of one decode, the last of which is an `EndEvent`. Leaving it early cancels the decode.

    Use it as `async with await worker.decode(...) as stream: async for event in stream: ...`.
    """

    def __init__(
        self, session_id: str, post: Callable[[Callback], None], leave: Callable[[DecodeStream], None]
    ) -> None:
        self.session_id = session_id
        self._post = post
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._leave = leave
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._is_over:
            raise StopAsyncIteration
        event = await self._events.get()
        self._is_over = isinstance(event, EndEvent)
        return event

    def close(self) -> None:
        """Leave: the decode is cancelled unless it has ended. Never waits, so it is safe while being cancelled."""
        if not self._is_over:
            self._is_over = True
            self._leave(self)

    async def aclose(self) -> None:
        """Leave, as `contextlib.aclosing` wants it."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sink(self, event: Event) -> None:
        """Take an event from the step loop's thread."""
        self._post(partial(self._events.put_nowait, event))
