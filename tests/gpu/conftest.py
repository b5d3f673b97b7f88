"""Tests that run on a GPU. Where there is none each says that it did not run, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu

NOT_RUN = "did not run"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU and the `cuda` extra; `make test-gpu` runs these")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests asked for a GPU and did not run."""
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])]
    for reason, count in Counter(reason for reason in reasons if NOT_RUN in reason).items():
        terminalreporter.write_line(f"GPU: {count} {reason.removeprefix('Skipped: ')}")


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
