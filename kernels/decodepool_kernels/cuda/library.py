"""Kernels by name and defines, compiled for one GPU and loaded once each."""

from __future__ import annotations

from collections.abc import Mapping

from decodepool_kernels.cuda.compile import image, target_of
from decodepool_kernels.cuda.device import Function, Gpu
from decodepool_kernels.cuda.registry import KERNELS


class KernelLibrary:
    """Loads what it is asked for and keeps it."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._target = target_of(gpu.capability)
        self._loaded: dict[tuple[object, ...], Function] = {}

    def function(self, name: str, defines: Mapping[str, int], threads: int, shared_bytes: int = 0) -> Function:
        """Return a kernel ready to launch with `threads` threads a block and `shared_bytes` of shared memory."""
        key = (name, *sorted(defines.items()), threads, shared_bytes)
        if key not in self._loaded:
            kernel = KERNELS[name]
            self._loaded[key] = self._gpu.load(
                image(kernel.source, defines, self._target), kernel.entry, threads, shared_bytes
            )
        return self._loaded[key]
