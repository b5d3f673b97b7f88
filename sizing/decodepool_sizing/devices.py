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
    """What decides how the CUDA engine cuts a step: the multiprocessors, and whether it has its programs for Hopper."""

    multiprocessors: int
    is_hopper: bool


WHOLE_HOPPER = GpuCores(132, is_hopper=True)
"""Of an H100 or H200: what takes the most workspace. A GPU that is known by its memory alone is planned as this."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device to plan for. `usable_bytes` is what is left of `memory_bytes` for weights, workspace, sessions and
    cache; `cores` None is a CPU.
    """

    kind: DeviceKind
    name: str
    memory_bytes: int
    usable_bytes: int
    cores: GpuCores | None = None


def cpu_memory(memory_bytes: int, name: str = "this CPU") -> DeviceMemory:
    """Return a CPU worker's memory: all of it but the process itself."""
    return DeviceMemory("cpu", name, memory_bytes, max(0, memory_bytes - PROCESS_BASE_BYTES))


def gpu_memory(memory_bytes: int, name: str = "this GPU", cores: GpuCores = WHOLE_HOPPER) -> DeviceMemory:
    """Return a GPU's memory: all of it but the context and a margin."""
    return DeviceMemory("cuda", name, memory_bytes, gpu_usable_bytes(memory_bytes), cores)


def gpu_usable_bytes(memory_bytes: int) -> int:
    """Return what a worker may plan with on a GPU whose driver reports `memory_bytes`."""
    return max(0, memory_bytes - memory_bytes // MARGIN_DIVISOR - CONTEXT_BYTES)
