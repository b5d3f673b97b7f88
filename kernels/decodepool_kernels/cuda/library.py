"""Kernels by name and defines, compiled for one GPU and loaded once each."""

from __future__ import annotations

from collections.abc import Mapping

from decodepool_kernels.cuda.compile import image, target_of
from decodepool_kernels.cuda.device import Function, Gpu
from decodepool_kernels.cuda.errors import BadImage
from decodepool_kernels.cuda.registry import KERNELS, Kernel


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
            self._loaded[key] = self._load(KERNELS[name], defines, threads, shared_bytes)
        return self._loaded[key]

    def _load(self, kernel: Kernel, defines: Mapping[str, int], threads: int, shared_bytes: int) -> Function:
        """Load a kernel. One that the driver takes for no image may have come damaged into the cache: it is compiled
        anew, once.
        """
        try:
            known = image(kernel.source, defines, self._target)
            return self._gpu.load(known, kernel.entry, threads, shared_bytes)
        except BadImage:
            compiled = image(kernel.source, defines, self._target, anew=True)
            return self._gpu.load(compiled, kernel.entry, threads, shared_bytes)
