"""A step's first kernel brings what changed from the turn that has the number after the last, and only once."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.backend import BRING_THREADS
from decodepool_kernels.cuda.device import Gpu, Launch
from decodepool_kernels.cuda.inputs import BROUGHT_WORDS, CHANGED_AT, CHANGED_END, NUMBER, WORDS_END
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.records import pointer
from decodepool_kernels.cuda.turns import MOST_NUMBER

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

WORDS = 40_960
PARTS = {
    "a header": (16, 0, 0),
    "what threads take at once": (4096, 0, 0),
    "more, and tables behind it": (4104, 4104, 4108),
    "tables in many rounds": (3608, 5004, WORDS),
}
"""The end of the words but the tables; begin and end of the part of these."""


@pytest.mark.parametrize("number", [0, 1, 2, MOST_NUMBER])
@pytest.mark.parametrize("part", PARTS.values(), ids=list(PARTS))
def test_it_brings_what_changed_once(gpu: Gpu, part: tuple[int, int, int], number: int) -> None:
    random = np.random.default_rng(number)
    before = random.integers(-(2**31), 2**31, WORDS).astype(np.int32)
    before[NUMBER] = (number - 1) & MOST_NUMBER
    turns = gpu.pinned(2 * WORDS).reshape(2, WORDS)
    turns[:] = random.integers(-(2**31), 2**31, (2, WORDS))
    turns[:, NUMBER] = before[NUMBER]
    turn = turns[number % 2]
    turn[[NUMBER, WORDS_END, CHANGED_AT, CHANGED_END]] = number, *part
    step, found = gpu.place(before), np.empty(WORDS, np.int32)
    arguments = (pointer(turns.ctypes.data), ctypes.c_int(WORDS // BROUGHT_WORDS), pointer(step))
    launch = Launch("bring", KernelLibrary(gpu).function("bring", {}, BRING_THREADS), (1, 1), arguments)
    end, changed_at, changed_end = part
    wanted = before.copy()
    wanted[:end], wanted[changed_at:changed_end] = turn[:end], turn[changed_at:changed_end]
    for _ in range(2):
        gpu.launch(launch)
        gpu.download(found, step)
        gpu.synchronize()
        assert (found == wanted).all()
        turn[CHANGED_END + 1 :] += 1  # the second time it is a step that ran already
