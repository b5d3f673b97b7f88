"""GPUs by name, for plans made before there is a GPU to ask.

`memory_mib` is what the driver reports with ECC as shipped; bandwidth is the vendor's figure, of all that a row stands
for the highest. A MIG slice is planned as itself, never as its card: its row has the slice's memory, and bandwidth in
proportion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decodepool_sizing.devices import (
    WHOLE_HOPPER,
    WIDEST_OF_OTHERS,
    DeviceMemory,
    GpuCores,
    gpu_memory,
    gpu_usable_bytes,
)


@dataclass(frozen=True, slots=True)
class GPU:
    """One model of GPU. `bandwidth` in bytes a second, `compute_capability` as CUDA writes it."""

    name: str
    memory_mib: int
    bandwidth: int
    compute_capability: str

    @property
    def memory_bytes(self) -> int:
        """All of the memory."""
        return self.memory_mib << 20

    @property
    def usable_bytes(self) -> int:
        """What a worker may plan with."""
        return gpu_usable_bytes(self.memory_bytes)

    @property
    def device(self) -> DeviceMemory:
        """This GPU as a device to plan for."""
        return gpu_memory(self.memory_bytes, self.name, cores_of(self.compute_capability))


CORES: Mapping[str, GpuCores] = {
    "8.0": GpuCores(108, 163 << 10),
    "8.6": GpuCores(84, 99 << 10),
    "8.9": GpuCores(142, 99 << 10),
    "9.0": WHOLE_HOPPER,
    "12.0": GpuCores(188, 99 << 10),
}
"""By compute capability: the most multiprocessors that a GPU of it has, and the shared memory of them all."""


def cores_of(compute_capability: str) -> tuple[GpuCores, ...]:
    """Return what a GPU of a compute capability such as 9.0 is planned as, whole or a slice: an operator that knows its
    product and the worker on it then plan alike. One that knows its memory alone plans with the most of any.
    """
    return (CORES.get(compute_capability, WIDEST_OF_OTHERS),)


_GB = 10**9
GPUS: tuple[GPU, ...] = (
    GPU("B300", 275_040, 8_000 * _GB, "10.3"),
    GPU("GB300", 284_208, 8_000 * _GB, "10.3"),
    GPU("B200", 183_359, 8_000 * _GB, "10.0"),
    GPU("GB200", 189_471, 8_000 * _GB, "10.0"),
    GPU("H200", 143_771, 4_800 * _GB, "9.0"),
    GPU("H200 NVL", 143_771, 4_800 * _GB, "9.0"),
    GPU("GH200 96GB", 97_871, 4_000 * _GB, "9.0"),
    GPU("H100 SXM", 81_559, 3_350 * _GB, "9.0"),
    GPU("H100 PCIe", 81_559, 2_039 * _GB, "9.0"),
    GPU("H100 NVL", 95_830, 3_900 * _GB, "9.0"),
    GPU("H20", 97_871, 4_000 * _GB, "9.0"),
    GPU("A100 80GB", 81_920, 2_039 * _GB, "8.0"),
    GPU("A100 40GB", 40_960, 1_555 * _GB, "8.0"),
    GPU("A30", 24_576, 933 * _GB, "8.0"),
    GPU("A40", 46_068, 696 * _GB, "8.6"),
    GPU("A10", 23_028, 600 * _GB, "8.6"),
    GPU("A10G", 23_028, 600 * _GB, "8.6"),
    GPU("L40S", 46_068, 864 * _GB, "8.9"),
    GPU("L40", 46_068, 864 * _GB, "8.9"),
    GPU("L4", 23_034, 300 * _GB, "8.9"),
    GPU("T4", 15_360, 320 * _GB, "7.5"),
    GPU("V100 32GB", 32_768, 981 * _GB, "7.0"),
    GPU("V100 16GB", 16_384, 900 * _GB, "7.0"),
    GPU("RTX PRO 6000", 97_887, 1_792 * _GB, "12.0"),
    GPU("RTX 6000 Ada", 46_068, 960 * _GB, "8.9"),
    GPU("RTX A6000", 46_068, 768 * _GB, "8.6"),
    GPU("RTX 5090", 32_607, 1_792 * _GB, "12.0"),
    GPU("RTX 5080", 16_303, 960 * _GB, "12.0"),
    GPU("RTX 4090", 24_564, 1_008 * _GB, "8.9"),
    GPU("RTX 4080", 16_376, 717 * _GB, "8.9"),
    GPU("RTX 3090", 24_576, 936 * _GB, "8.6"),
    GPU("H200 MIG 1g.18gb", 16_384, 600 * _GB, "9.0"),
    GPU("H200 MIG 3g.71gb", 71_424, 2_400 * _GB, "9.0"),
    GPU("H100 MIG 1g.10gb", 9_984, 419 * _GB, "9.0"),
    GPU("H100 MIG 1g.20gb", 20_096, 838 * _GB, "9.0"),
    GPU("H100 MIG 2g.20gb", 20_096, 838 * _GB, "9.0"),
    GPU("H100 MIG 3g.40gb", 40_448, 1_675 * _GB, "9.0"),
    GPU("H100 MIG 4g.40gb", 40_448, 1_675 * _GB, "9.0"),
    GPU("H100 MIG 7g.80gb", 81_152, 3_350 * _GB, "9.0"),
    GPU("A100 MIG 1g.5gb", 4_864, 195 * _GB, "8.0"),
    GPU("A100 MIG 1g.10gb", 9_728, 389 * _GB, "8.0"),
    GPU("A100 MIG 2g.10gb", 9_984, 389 * _GB, "8.0"),
    GPU("A100 MIG 1g.20gb", 19_968, 510 * _GB, "8.0"),
    GPU("A100 MIG 2g.20gb", 19_968, 510 * _GB, "8.0"),
    GPU("A100 MIG 3g.20gb", 20_096, 778 * _GB, "8.0"),
    GPU("A100 MIG 4g.20gb", 20_096, 778 * _GB, "8.0"),
    GPU("A100 MIG 3g.40gb", 40_192, 1_020 * _GB, "8.0"),
    GPU("A100 MIG 4g.40gb", 40_192, 1_020 * _GB, "8.0"),
    GPU("A100 MIG 7g.40gb", 40_448, 1_555 * _GB, "8.0"),
    GPU("A100 MIG 7g.80gb", 80_640, 2_039 * _GB, "8.0"),
)
