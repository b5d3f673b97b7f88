from __future__ import annotations

import pytest
from decodepool_sizing.devices import gpu_memory
from decodepool_sizing.gpu_names import find_gpu, is_shared
from decodepool_sizing.gpus import GPU, GPUS


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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h20o", "did you mean .*H20"),
        ("h1oo", "did you mean H100 SXM"),
        ("h100 mig 1g.12gb", r"did you mean .*H100 MIG 1g\.10gb"),
        ("potato", "no GPU is called 'potato'; known are (?!.*MIG).*H200"),
    ],
)
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
    "NVIDIA-H100-PCIe": "H100 PCIe",
    "NVIDIA-H100-80GB-HBM2e": "H100 PCIe",
    "NVIDIA-H100-NVL": "H100 NVL",
    "NVIDIA-H200": "H200",
    "NVIDIA-H200-NVL": "H200 NVL",
    "NVIDIA-GH200-480GB": "GH200 96GB",
    "NVIDIA-GH200-120GB": "GH200 96GB",
    "NVIDIA-B200": "B200",
    "NVIDIA-B300-SXM6-AC": "B300",
    "NVIDIA-GB300": "GB300",
    "NVIDIA-A100-SXM4-80GB": "A100 80GB",
    "NVIDIA-A100-80GB-PCIe": "A100 80GB",
    "NVIDIA-A100-SXM4-40GB": "A100 40GB",
    "NVIDIA-A100-PCIE-40GB": "A100 40GB",
    "A100-SXM4-40GB-SHARED": "A100 40GB",
    "Tesla-T4": "T4",
    "Tesla-T4-SHARED": "T4",
    "NVIDIA-Tesla-T4": "T4",
    "NVIDIA-L4-SHARED": "L4",
    "Tesla-V100-SXM2-16GB": "V100 16GB",
    "Tesla-V100-SXM3-32GB": "V100 32GB",
    "Tesla-V100-PCIE-32GB": "V100 32GB",
    "NVIDIA-GeForce-RTX-4090": "RTX 4090",
    "NVIDIA-L40S": "L40S",
    "NVIDIA-RTX-6000-Ada-Generation": "RTX 6000 Ada",
    "NVIDIA-RTX-A6000": "RTX A6000",
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition": "RTX PRO 6000",
    "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition": "RTX PRO 6000",
    "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb": "H100 MIG 1g.10gb",
    "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me": "H100 MIG 1g.10gb",
    "NVIDIA-A100-SXM4-80GB-MIG-2g.20gb": "A100 MIG 2g.20gb",
    "A100-SXM4-40GB-MIG-1g.5gb-SHARED": "A100 MIG 1g.5gb",
    "NVIDIA-A100-SXM4-40GB-MIG-1g.10gb": "A100 MIG 1g.10gb",
    "NVIDIA-A100-80GB-PCIe-MIG-1g.20gb": "A100 MIG 1g.20gb",
    "NVIDIA-H200-141GB-MIG-3g.71gb": "H200 MIG 3g.71gb",
}


@pytest.mark.parametrize("label", sorted(LABELS))
def test_a_gpu_is_found_by_the_label_that_its_node_has(label: str) -> None:
    assert find_gpu(label).name == LABELS[label]
    assert is_shared(label) is label.endswith("-SHARED")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h100 sxm5", "H100 SXM"),
        ("H100 SXM5 80GB", "H100 SXM"),
        ("H100 PCIe 80GB", "H100 PCIe"),
        ("h100-nvl-94gb", "H100 NVL"),
        ("h200 sxm 141GB", "H200"),
        ("B200 180GB HBM3e", "B200"),
        ("B200 192GB", "B200"),
        ("l40s 48gb", "L40S"),
        ("RTX 4090 24GB", "RTX 4090"),
        ("GB200 192GB", "GB200"),
        ("GB200 186GB", "GB200"),
        ("GB300 288GB", "GB300"),
        ("B300 288GB", "B300"),
        ("B300 270GB", "B300"),
        ("h100 mig 1g.10gb+me", "H100 MIG 1g.10gb"),
    ],
)
def test_a_form_or_a_size_that_a_row_leaves_out_may_be_named(name: str, found: str) -> None:
    assert find_gpu(name).name == found


@pytest.mark.parametrize(
    "name",
    ["NVIDIA-H100-96GB-HBM3", "A100-SXM-64GB", "T4 24GB", "NVIDIA-GeForce-RTX-4090-Laptop-GPU", "Quadro-RTX-6000",
     "NVIDIA-GH200-144G-HBM3e", "NVIDIA-H20-3e", "RTX 3090 Ti", "GB200 170GB", "B200 200GB", "H200 160GB",
     "A100-SXM4-40GB-MIG-7g.80gb", "A100-SXM4-40GB-MIG-3g.40gb", "NVIDIA-A100-SXM4-80GB-MIG-1g.5gb",
     "H100-96GB-MIG-1g.10gb", "H100-MIG-1g.12gb", "SHARED", "-", ""],
)  # fmt: skip
def test_a_gpu_of_another_size_or_kind_is_not_taken_for_one_that_is_known(name: str) -> None:
    with pytest.raises(ValueError, match="no GPU is called"):
        find_gpu(name)


FORMS = {
    "NVIDIA-A100-SXM4-80GB": 2_039,
    "NVIDIA-A100-80GB-PCIe": 1_935,
    "NVIDIA-H100-PCIe": 2_039,
    "Tesla-V100-SXM3-32GB": 981,
    "NVIDIA-A100-SXM4-40GB-MIG-1g.10gb": 1_555 / 4,
    "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb": 1_555 / 8,
    "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb": 2_039 / 8,
    "NVIDIA-A100-SXM4-80GB-MIG-2g.20gb": 2_039 / 4,
    "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb": 2_039 / 2,
    "NVIDIA-A100-SXM4-80GB-MIG-7g.80gb": 2_039,
    "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb": 3_350 / 8,
    "NVIDIA-H100-80GB-HBM3-MIG-2g.20gb": 3_350 / 4,
}
"""The vendor's figure in GB a second, or a slice's part of it."""


@pytest.mark.parametrize("label", FORMS)
def test_no_gpu_of_a_row_reads_faster_than_the_row_says(label: str) -> None:
    assert FORMS[label] <= find_gpu(label).bandwidth / 10**9


def test_a_gpu_that_is_known_by_its_memory_alone_is_planned_with_the_most_cores_of_any() -> None:
    widest = {cores.is_hopper: cores for cores in gpu_memory(80 << 30).cores}
    for gpu in GPUS:
        (cores,) = gpu.device.cores
        assert cores.multiprocessors <= widest[cores.is_hopper].multiprocessors
        assert cores.shared_bytes <= widest[cores.is_hopper].shared_bytes
