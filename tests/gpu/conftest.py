"""Tests that run on a GPU. Where there is none each says that it did not run, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU and the `cuda` extra; `make test-gpu` runs these")


@pytest.fixture(scope="session")
def gpu() -> Iterator[Gpu]:
    pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")
    from decodepool_kernels.cuda.device import Gpu  # noqa: PLC0415 - the extra may be missing
    from decodepool_kernels.cuda.errors import GpuFault  # noqa: PLC0415

    try:
        device = Gpu()
    except GpuFault as error:
        pytest.skip(f"did not run: no GPU here ({error})")
    yield device
    device.close()
