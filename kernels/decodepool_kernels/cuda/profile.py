"""Where a step's time goes: each kind of launch by itself, as one graph of its kind; and how fast the GPU reads."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from statistics import median

from decodepool_kernels.cuda.backend import CudaBackend
from decodepool_kernels.cuda.device import Gpu, Launch
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.records import pointer

READ_BYTES = 4 << 30
"""Read to learn the bandwidth: far more than any cache holds."""
READ_THREADS = 512
WORD_BYTES = 16


@dataclass(frozen=True)
class Phase:
    """One kind of launch: how many a step has, the seconds that they take back to back, the weights they read."""

    name: str
    launches: int
    seconds: float
    weight_bytes: int


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
        seconds = median(gpu.timed(run) for _ in range(repeats))
        found.append(Phase(name, len(launches), seconds, sum(launch.weight_bytes for launch in launches)))
    return sorted(found, key=lambda phase: -phase.seconds)


def read_bandwidth(gpu: Gpu, repeats: int = 5) -> float:
    """Return the bytes a second that the GPU reads at best, with as much memory as is free, at most READ_BYTES."""
    size = min(READ_BYTES, gpu.free_bytes() // 2) // WORD_BYTES * WORD_BYTES
    words = gpu.allocate(size)
    sums = gpu.allocate(WORD_BYTES * gpu.sm_count * 4)
    launch = read_launch(gpu, KernelLibrary(gpu), words, size, sums)
    run = partial(gpu.launch, launch)
    run()
    seconds = min(gpu.timed(run) for _ in range(repeats))
    gpu.release(words)
    gpu.release(sums)
    return size / seconds


def read_launch(gpu: Gpu, library: KernelLibrary, words: int, size_bytes: int, sums: int) -> Launch:
    """Return what reads all of `words` once and leaves an exclusive or of 16 bytes a block at `sums`."""
    function = library.function("read_words", {}, READ_THREADS)
    blocks = gpu.sm_count * min(4, function.blocks_per_sm)
    arguments = (pointer(words), ctypes.c_longlong(size_bytes // WORD_BYTES), pointer(sums))
    return Launch("read", function, (blocks, 1), arguments)
