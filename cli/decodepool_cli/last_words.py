"""What a worker said last: its stderr, passed on to this process's own."""

from __future__ import annotations

import asyncio
import sys

READ_BYTES = 1 << 16
KEPT_BYTES = 4096


class LastWords:
    """Passes a process's stderr on as it comes, and remembers the end of it."""

    def __init__(self) -> None:
        self._tail = b""

    async def relay(self, stream: asyncio.StreamReader) -> None:
        """Pass everything on, until the process is gone."""
        while chunk := await stream.read(READ_BYTES):
            sys.stderr.write(chunk.decode(errors="replace"))
            sys.stderr.flush()
            self._tail = (self._tail + chunk)[-KEPT_BYTES:]

    @property
    def line(self) -> str:
        """The last line that says anything."""
        lines = self._tail.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
