from __future__ import annotations

import pytest
from decodepool_sizing.gpus import GPU, GPUS, find_gpu


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h200", "H200"),
        ("NVIDIA H200", "H200"),
        ("H100", "H100 SXM"),
        ("h100-pcie", "H100 PCIe"),
        ("a100_40gb", "A100 40GB"),
        ("rtx-4090", "RTX 4090"),
        (" L40S ", "L40S"),
        ("H100 MIG 1g.10gb", "H100 MIG 1g.10gb"),
    ],
)
def test_a_gpu_is_found_however_it_is_written(name: str, found: str) -> None:
    assert find_gpu(name).name == found


@pytest.mark.parametrize(("name", "text"), [("h20o", "did you mean .*H20"), ("potato", "no GPU is called 'potato'")])
def test_a_name_nobody_has_lists_close_ones(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        find_gpu(name)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_row_makes_sense(gpu: GPU) -> None:
    assert find_gpu(gpu.name) is gpu
    assert 0.9 * gpu.memory_bytes < gpu.usable_bytes < gpu.memory_bytes or "MIG" in gpu.name or gpu.memory_mib < 20_000
    assert 10**11 < gpu.bandwidth < 10**13
    assert 7 <= float(gpu.compute_capability) < 13


def test_a_slice_is_planned_as_itself() -> None:
    assert find_gpu("h100 mig 1g.10gb").memory_bytes < 10 << 30


LABELS = {
    "NVIDIA-H100-80GB-HBM3": "H100 SXM",
    "NVIDIA-H200": "H200",
    "NVIDIA-A100-SXM4-80GB": "A100 80GB",
    "NVIDIA-A100-PCIE-40GB": "A100 40GB",
    "Tesla-T4": "T4",
    "Tesla-V100-SXM2-16GB": "V100 16GB",
    "NVIDIA-GeForce-RTX-4090": "RTX 4090",
    "NVIDIA-L40S": "L40S",
    "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb": "H100 MIG 1g.10gb",
    "NVIDIA-A100-SXM4-80GB-MIG-2g.20gb": "A100 MIG 2g.20gb",
}


@pytest.mark.parametrize("label", sorted(LABELS))
def test_a_gpu_is_found_by_the_label_that_its_node_has(label: str) -> None:
    assert find_gpu(label).name == LABELS[label]
