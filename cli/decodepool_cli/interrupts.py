"""An end asked for politely is an interrupt: what a command has begun is undone on the way out."""

from __future__ import annotations

import signal
from types import FrameType


def interrupt_on_terminate() -> None:
    """Have SIGTERM raise KeyboardInterrupt, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature is the signal module's
    raise KeyboardInterrupt
