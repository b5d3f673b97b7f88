"""The clock and the power of the GPU that is measured, as `nvidia-smi` tells them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from threading import Thread
from time import perf_counter

QUERY = (
    "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits", "--loop-ms=50",
)  # fmt: skip
"""`power.draw` alone would be the mean of a second, which is what a width is timed for."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was told when `perf_counter` read `at`."""

    at: float
    sm_mhz: float
    power_watts: float


@dataclass
class Card:
    """What a card told so far."""

    samples: list[Sample] = field(default_factory=list)

    def listen(self, lines: Iterable[str]) -> None:
        """Take samples as they come; what is no pair of numbers tells nothing."""
        for line in lines:
            sm_mhz, _, power_watts = line.partition(",")
            try:
                self.samples.append(Sample(perf_counter(), float(sm_mhz), float(power_watts)))
            except ValueError:
                continue

    def between(self, began: float, ended: float) -> dict[str, float]:
        """Return the medians between two readings of `perf_counter`, as columns; none where nothing was told."""
        told = [sample for sample in self.samples if began <= sample.at <= ended]
        if not told:
            return {}
        return {
            "sm_mhz": round(median(sample.sm_mhz for sample in told)),
            "power_watts": round(median(sample.power_watts for sample in told), 1),
        }


@contextmanager
def watched_card() -> Iterator[Card]:
    """Watch the first card that CUDA may see, of cards that are alike: CUDA counts others in an order of its own.
    Where no `nvidia-smi` is, nothing is told.
    """
    card = Card()
    first, *_ = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    try:
        child = subprocess.Popen(
            ["nvidia-smi", f"--id={first}", *QUERY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        yield card
        return
    with child:
        assert child.stdout is not None
        listening = Thread(target=card.listen, args=(child.stdout,))
        listening.start()
        try:
            yield card
        finally:
            child.terminate()
            listening.join()
