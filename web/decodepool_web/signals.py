"""What ends a process: signals, and the death of its parent."""

from __future__ import annotations

import asyncio
import logging
import signal


class Signals:
    """The first SIGTERM or SIGINT, and the second. A cut lifeline is both at once."""

    def __init__(self, logger: logging.Logger, lifeline: int | None = None) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._logger = logger
        self._loop = asyncio.get_running_loop()
        self._lifeline = lifeline
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._came)
        if lifeline is not None:
            self._loop.add_reader(lifeline, self._orphaned)

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def _orphaned(self) -> None:
        self._logger.warning("the parent process is gone: ending")
        self._stop_watching()
        self.first.set()
        self.second.set()

    def _stop_watching(self) -> None:
        if self._lifeline is not None:
            self._loop.remove_reader(self._lifeline)

    def remove(self) -> None:
        """Give the signals back."""
        self._stop_watching()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)
