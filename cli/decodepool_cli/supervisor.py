"""A pool's processes, workers and gateway: started, watched, started again when they die, and ended together.

Nothing outlives this process. Each of them holds the reading end of a pipe whose writing end is held here alone: when
this process dies, however it dies, the kernel closes it and they end by themselves.

The sockets are held here too, and lent to them. So no port can be taken, or answered for, by anybody else while its
process is not there; who connects in the meantime waits for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from decodepool_cli.faults import BAD_INPUT, DONE, FAILED
from decodepool_cli.last_words import LastWords

logger = logging.getLogger("decodepool.run")

FIRST_BACKOFF_SECONDS = 1.0
STEADY_SECONDS = 60.0
"""A worker that was ready for this long starts again soon, as if it had never died."""

QUICK_ENDS = 5
"""Ends in a row of a worker that never got that far, after which nothing is expected of another start."""

LAST_WORDS_SECONDS = 1.0
"""How long a worker's stderr is read on after its end."""

PROBE_SECONDS = 2.0
PROBE_TIMEOUT_SECONDS = 5.0
FAILED_PROBES = 3
"""Liveness probes in a row that may fail before a worker counts as hung and is killed."""

GRACE_SECONDS = 10.0
"""What a worker has beyond its drain before it is killed."""


@dataclass(frozen=True)
class ProcessSpec:
    """One process: what it is called, the socket it listens on, where that is reached from this machine, and the module
    and arguments that start it. It takes `--lifeline` and `--inherited` besides, and answers `/readyz` and `/healthz`.
    """

    name: str
    listener: socket.socket
    url: str
    command: tuple[str, ...]


class Supervisor:
    """Keeps processes alive until told to end. `on_ready` hears of each that becomes ready, each time."""

    def __init__(
        self, specs: Sequence[ProcessSpec], drain_seconds: float, on_ready: Callable[[ProcessSpec], None]
    ) -> None:
        self._specs = specs
        self._drain_seconds = drain_seconds
        self._on_ready = on_ready
        self._stopping = asyncio.Event()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._lifeline = os.pipe()

    async def run(self) -> int:
        """Run until a signal, or until one of them cannot be kept alive; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PROBE_TIMEOUT_SECONDS)) as http:
                codes = await _together([_Keeper(self, spec, http).keep() for spec in self._specs])
            return max(codes, default=DONE)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            for end in self._lifeline:
                os.close(end)

    @property
    def stopping(self) -> asyncio.Event:
        """Set once all are to end."""
        return self._stopping

    def stop(self) -> None:
        """Ask all of them to drain; asked again, to end now. From here on they alone hold their sockets, and a port is
        free when its process is gone.
        """
        self._stopping.set()
        for spec in self._specs:
            spec.listener.close()
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    async def spawn(self, spec: ProcessSpec) -> asyncio.subprocess.Process:
        """Start a process in a session of its own, so that a terminal's Ctrl-C reaches it through here alone."""
        lifeline, listener = self._lifeline[0], spec.listener.fileno()
        command = [sys.executable, "-m", *spec.command]
        process = await asyncio.create_subprocess_exec(
            *command,
            f"--lifeline={lifeline}",
            f"--inherited={listener}",
            pass_fds=[lifeline, listener],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._processes[spec.name] = process
        if self._stopping.is_set():  # it came while the process was being made
            self.stop()
        return process

    async def exit_code(self, spec: ProcessSpec, process: asyncio.subprocess.Process) -> int:
        """Wait for a process's end; once all are to end, no longer than its drain and some grace."""
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([ended, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        try:
            code = await asyncio.wait_for(asyncio.shield(ended), self._patience())
        except TimeoutError:
            logger.warning("%s did not end in time: killed", spec.name)
            process.kill()
            code = await ended
        del self._processes[spec.name]
        return code

    def ready(self, spec: ProcessSpec) -> None:
        """Tell that a process is ready."""
        self._on_ready(spec)

    def _patience(self) -> float | None:
        return self._drain_seconds + GRACE_SECONDS if self._stopping.is_set() else None

    def _signalled(self) -> None:
        patience = f"draining: running streams have {self._drain_seconds:g} s; Ctrl-C again ends now"
        logger.info("%s", "ending now" if self._stopping.is_set() else patience)
        self.stop()


class _Keeper:
    """Keeps one process alive."""

    def __init__(self, supervisor: Supervisor, spec: ProcessSpec, http: aiohttp.ClientSession) -> None:
        self._supervisor = supervisor
        self._spec = spec
        self._http = http
        self._ready_at: float | None = None

    async def keep(self) -> int:
        """Run the process again and again until all are to end; return the exit code that this is worth."""
        quick_ends = 0
        while not self._supervisor.stopping.is_set():
            code, last_words = await self._live_once()
            if code == BAD_INPUT:  # no restart mends its input: it has said what is wrong with it
                self._supervisor.stop()
                return BAD_INPUT
            if self._supervisor.stopping.is_set():
                break
            quick_ends = 0 if self._was_steady() else quick_ends + 1
            if quick_ends == QUICK_ENDS:
                self._give_up(code, last_words)
                return FAILED
            await self._pause(code, FIRST_BACKOFF_SECONDS * 2 ** max(0, quick_ends - 1))
        return DONE

    def _was_steady(self) -> bool:
        """Whether it was ready for long. Loading counts for nothing: it may take minutes to fail."""
        return self._ready_at is not None and time.monotonic() - self._ready_at > STEADY_SECONDS

    def _give_up(self, code: int, last_words: str) -> None:
        """End the whole pool: what it lacks will not come by itself."""
        manner = f"ended {QUICK_ENDS} times in a row, with {_manner(code)}"
        logger.critical("%s %s: giving up; it said: %s", self._spec.name, manner, last_words)
        self._supervisor.stop()

    async def _live_once(self) -> tuple[int, str]:
        """Run the process to its end; return its exit code and its last words."""
        self._ready_at = None
        process = await self._supervisor.spawn(self._spec)
        assert process.stderr is not None  # it is a pipe
        last_words = LastWords()
        relay = asyncio.create_task(last_words.relay(process.stderr))
        watch = asyncio.create_task(self._watch(process))
        try:
            code = await self._supervisor.exit_code(self._spec, process)
            await asyncio.wait([relay], timeout=LAST_WORDS_SECONDS)
            return code, last_words.line
        finally:
            watch.cancel()
            relay.cancel()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Tell when it becomes ready; kill it when it hangs."""
        failures = 0
        while failures < FAILED_PROBES:
            await asyncio.sleep(PROBE_SECONDS / 10 if self._ready_at is None else PROBE_SECONDS)
            if self._ready_at is None and await self._answers("/readyz"):
                self._ready_at = time.monotonic()
                self._supervisor.ready(self._spec)
            if self._ready_at is not None:
                failures = 0 if await self._answers("/healthz") else failures + 1
        logger.error("%s does not answer its liveness probe: killed", self._spec.name)
        with suppress(ProcessLookupError):
            process.kill()

    async def _answers(self, path: str) -> bool:
        try:
            async with self._http.get(self._spec.url + path) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _pause(self, code: int, seconds: float) -> None:
        logger.error("%s ended with %s: starting it again in %g s", self._spec.name, _manner(code), seconds)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._supervisor.stopping.wait(), seconds)


async def _together(keepers: Sequence[Coroutine[None, None, int]]) -> list[int]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keeper) for keeper in keepers]
    return [task.result() for task in tasks]


def _manner(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
