"""Who the workers are: from a list for one machine, from a headless Service's EndpointSlices in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from decodepool_gateway.workers import WorkerAddress

Tell = Callable[[Sequence[WorkerAddress]], None]
"""Hears of all workers, each time that something about one of them has changed. Called on the event loop."""


class Discovery(Protocol):
    """A source of workers."""

    async def run(self, tell: Tell) -> None:
        """Tell of the workers until cancelled."""
