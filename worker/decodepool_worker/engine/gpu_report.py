"""What a GPU says of itself and of the steps on it, for measurements."""

from __future__ import annotations

from dataclasses import dataclass

from decodepool_kernels.cuda import nvrtc
from decodepool_kernels.cuda.backend import CudaBackend
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.profile import Phase, phases, read_bandwidth, step_seconds


@dataclass(frozen=True)
class GpuReport:
    """A GPU and the backend on it. Measures only between steps, on the thread that steps."""

    gpu: Gpu
    backend: CudaBackend

    def described(self) -> dict[str, str | int]:
        """Return what figures depend on: the card, and the versions of what drives it."""
        return {
            "gpu": self.gpu.name,
            "gpu_memory_bytes": self.gpu.memory_bytes,
            "compute_capability": f"{self.gpu.capability / 10}",
            "multiprocessors": self.gpu.sm_count,
            "cuda_driver": self.gpu.driver_version,
            "nvrtc": nvrtc.version(),
        }

    def read_bandwidth(self) -> float:
        """Return the bytes a second that the GPU reads at best."""
        self.gpu.enter()
        return read_bandwidth(self.gpu)

    def step_seconds(self, rows: int) -> float:
        """Return the device's time for the step last run, of `rows` rows."""
        return step_seconds(self.gpu, self.backend, rows)

    def phases(self, rows: int) -> list[Phase]:
        """Return the phases of the step last run. The sessions of that step are worthless afterwards."""
        return phases(self.gpu, self.backend, rows)
