"""This GPU passes what every GPU is held to as it starts, for every kind of weights, and has its memory back."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.packing import MatrixKind
from decodepool_kernels.cuda.registry import KINDS
from decodepool_worker.engine.tensor_cores import require_arithmetic

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

MOST_SECONDS = 1.0
"""Of this thread: others share the machine."""


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_this_gpu_multiplies_as_is_written(
    gpu: Gpu, kind: MatrixKind, record_property: Callable[[str, object], None]
) -> None:
    require_arithmetic(gpu, [kind])  # compiles its kernels where this is the first time
    before, began = list(gpu._allocations), time.thread_time()
    require_arithmetic(gpu, [kind])
    seconds = time.thread_time() - began
    record_property("seconds", seconds)
    assert seconds < MOST_SECONDS
    assert gpu._allocations == before
