"""Where a worker runs, and how much of its memory is the worker's to plan with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "cuda"]

SLICE_ELEMENTS = 1 << 19
"""Weights that a thread unpacks at once, or those of 32 outputs if they are more."""

SLICE_ELEMENT_BYTES = 16
"""The most that unpacking needs beside what it fills, for each weight of a slice: what was read, codes, what is packed.
"""

LOADING_THREADS = 8
"""Threads that unpack at the same time, at most: more wait for the interpreter, or for the disk."""

LOADING_SCRATCH_BYTES = LOADING_THREADS * SLICE_ELEMENTS * SLICE_ELEMENT_BYTES
"""Beside the weights themselves, the most that loading needs."""

PROCESS_BASE_BYTES = 256 << 20
"""Resident memory of a CPU worker before any weight: the interpreter, NumPy, Numba's compiled kernels, tokenizer,
HTTP; and the scratch of loading, which is over before a request comes.
"""

CONTEXT_BYTES = 640 << 20
"""Memory of a GPU that a CUDA context, its modules and graphs take before any weight."""

MARGIN_DIVISOR = 64
"""One part in 64 of a GPU stays free: allocations come in 2 MiB pieces, and a driver's own use varies between
versions.
"""


@dataclass(frozen=True, slots=True)
class GpuCores:
    """What decides how the CUDA engine cuts a step: the multiprocessors, the shared memory that a thread block may
    have, and whether it has its programs for Hopper.
    """

    multiprocessors: int
    shared_bytes: int
    is_hopper: bool = False


WHOLE_HOPPER = GpuCores(132, 227 << 10, is_hopper=True)
"""Of an H100 or H200."""
WIDEST_OF_OTHERS = GpuCores(188, 227 << 10)
"""As many multiprocessors, and as much shared memory, as any other GPU has."""
ANY_CORES = (WHOLE_HOPPER, WIDEST_OF_OTHERS)
"""Of a GPU that is known by its memory alone."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device to plan for. `usable_bytes` is what is left of `memory_bytes` for weights, workspace, sessions and
    cache; `cores` are those that a GPU may have, none a CPU's.
    """

    kind: DeviceKind
    name: str
    memory_bytes: int
    usable_bytes: int
    cores: tuple[GpuCores, ...] = ()


def cpu_memory(memory_bytes: int, name: str = "this CPU") -> DeviceMemory:
    """Return a CPU worker's memory: all of it but the process itself."""
    return DeviceMemory("cpu", name, memory_bytes, max(0, memory_bytes - PROCESS_BASE_BYTES))


def gpu_memory(memory_bytes: int, name: str = "this GPU", cores: tuple[GpuCores, ...] = ANY_CORES) -> DeviceMemory:
    """Return a GPU's memory: all of it but the context and a margin. Of `cores` it is planned with the most."""
    return DeviceMemory("cuda", name, memory_bytes, gpu_usable_bytes(memory_bytes), cores)


def gpu_usable_bytes(memory_bytes: int) -> int:
    """Return what a worker may plan with on a GPU whose driver reports `memory_bytes`."""
    return max(0, memory_bytes - memory_bytes // MARGIN_DIVISOR - CONTEXT_BYTES)


def memory_bytes_of(kind: DeviceKind, usable_bytes: int) -> int:
    """Return the least memory of a device of which so much is usable."""
    if kind == "cpu":
        return usable_bytes + PROCESS_BASE_BYTES
    beside = usable_bytes + CONTEXT_BYTES
    return beside + (beside - 1) // (MARGIN_DIVISOR - 1)
