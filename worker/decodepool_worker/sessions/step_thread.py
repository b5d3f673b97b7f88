"""The thread that owns a residence: commands in, steps, results out.

A turn is: every command that waits, their answers delivered at once, one step, its results delivered at once. So a
command is answered within a step, and a step of sixteen streams wakes the listener's loop once. With no work the
thread sleeps on the queue.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from decodepool_worker.sessions.errors import Draining
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.session import SessionState

T = TypeVar("T")
Callback = Callable[[], None]
Deliver = Callable[[Sequence[Callback]], None]
"""Takes results together, on the loop's thread, and has them called on the listener's."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """Whether the thread lives, and for how long the present turn has lasted; None while it sleeps for lack of work."""

    alive: bool
    turn_seconds: float | None


class StepThread:
    """Runs a residence on a thread of its own."""

    def __init__(self, residence: Residence, deliver: Deliver, clock: Callable[[], float]) -> None:
        self._residence = residence
        self._deliver = deliver
        self._clock = clock
        self._commands: queue.SimpleQueue[Callback | None] = queue.SimpleQueue()
        self._results: list[Callback] = []
        self._on_quiet: Callback | None = None
        self._submitting = threading.Lock()
        self._closed = False
        self._turn_began: float | None = None
        self.stats = residence.stats()
        residence.when_told(self._publish)
        self._thread = threading.Thread(target=self._run, name="decodepool-steps", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, command: Callback) -> None:
        """Have a command called on the thread before its next step. From any thread; `Draining` once stopped."""
        with self._submitting:
            if self._closed:
                raise Draining("the worker has stopped")
            self._commands.put(command)

    def post(self, callback: Callback) -> None:
        """Deliver a callback with what else this half of the turn makes. From commands and sinks only."""
        self._results.append(callback)

    def when_quiet(self, callback: Callback) -> None:
        """Deliver a callback as soon as no stream is under way. From commands only."""
        self._on_quiet = callback

    def stop(self) -> None:
        """End after the commands submitted so far and at most one step. From any thread; does not wait."""
        with self._submitting:
            self._closed = True
            self._commands.put(None)

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end; False if it did not come."""
        if self._thread.ident is None:
            return True  # it never began
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def pulse(self) -> Pulse:
        """Feel it, without waiting. From any thread."""
        began = self._turn_began
        return Pulse(self._thread.is_alive(), None if began is None else self._clock() - began)

    def _run(self) -> None:
        is_busy, is_open = False, True
        while is_open:
            commands = self._gather(wait=not is_busy)
            self._turn_began = self._clock()
            is_open = None not in commands
            for command in commands:
                if command is not None:
                    self._guard(command)
            self._publish()
            is_busy = is_open and bool(self._guard(self._residence.tick))
            self._publish()
        self._turn_began = None

    def _gather(self, *, wait: bool) -> list[Callback | None]:
        """Return the commands that wait; without work, sleep until there is one."""
        commands: list[Callback | None] = []
        if wait:
            self._turn_began = None
            commands.append(self._commands.get())
        commands.extend(self._commands.get_nowait() for _ in range(self._commands.qsize()))
        return commands

    def _guard(self, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except Exception as error:  # a fault of our own: worse than the engine's, and told the same way
            self._residence.fail(error)
            return None

    def _publish(self) -> None:
        self.stats = self._residence.stats()
        if self._on_quiet is not None and not self.stats.sessions[SessionState.DECODING]:
            self._results.append(self._on_quiet)
            self._on_quiet = None
        if self._results:
            results, self._results = self._results, []
            self._deliver(results)
