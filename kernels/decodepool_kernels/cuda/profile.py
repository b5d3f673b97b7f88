"""Where a step's time goes: each kind of launch by itself, as one graph of all of its kind."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from statistics import median

from decodepool_kernels.cuda.backend import CudaBackend
from decodepool_kernels.cuda.device import Gpu, Launch


@dataclass(frozen=True)
class Phase:
    """One kind of launch: how many a step has, and the seconds that all of them take back to back."""

    name: str
    launches: int
    seconds: float


def step_seconds(gpu: Gpu, backend: CudaBackend, rows: int, repeats: int = 9) -> float:
    """Return the device's time for the step last placed, of `rows` rows: the median."""
    return median(gpu.timed(partial(backend.replay, rows)) for _ in range(repeats))


def phases(gpu: Gpu, backend: CudaBackend, rows: int, repeats: int = 5) -> list[Phase]:
    """Return the phases of the step last placed, the longest first. It leaves the sessions of that step worthless."""
    kinds: dict[str, list[Launch]] = defaultdict(list)
    for launch in backend.launches(rows):
        kinds[launch.name].append(launch)
    found = []
    for name, launches in kinds.items():
        run = gpu.captured(launches)
        run()
        found.append(Phase(name, len(launches), median(gpu.timed(run) for _ in range(repeats))))
    return sorted(found, key=lambda phase: -phase.seconds)
