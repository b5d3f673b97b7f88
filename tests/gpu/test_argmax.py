"""The best token of a row is NumPy's argmax, over vocabularies that 32 blocks share evenly or not, again and again."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.backend import ARGMAX_SHARES, ARGMAX_THREADS
from decodepool_kernels.cuda.device import Gpu, Launch
from decodepool_kernels.cuda.inputs import ANSWER_WORDS, HEADER_WORDS, MAX_ROWS, ROW_ARRAYS, WANTED, WANTED_SLOTS
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.records import pointer

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

WIDTH = 24


def best(gpu: Gpu, logits: NDArray[np.float32]) -> list[tuple[int, float]]:
    """Return (id, logit) of each row, of the second of two launches for WIDTH rows; rows lie in slots reversed."""
    rows, vocabulary = logits.shape
    words = np.zeros(HEADER_WORDS + ROW_ARRAYS * MAX_ROWS, np.int32)
    words[WANTED] = rows
    words[HEADER_WORDS:].reshape(ROW_ARRAYS, MAX_ROWS)[WANTED_SLOTS, :rows] = np.arange(rows)[::-1]
    answers, shares, ended = (
        gpu.allocate(4 * ANSWER_WORDS * WIDTH),
        gpu.allocate(8 * ARGMAX_SHARES * WIDTH),
        gpu.allocate(4 * WIDTH),
    )
    places = (answers, gpu.place(words), shares, ended, gpu.allocate(4 * rows))
    sizes = (ctypes.c_longlong(vocabulary), ctypes.c_int(vocabulary))
    arguments = (pointer(gpu.place(logits[::-1])), *sizes, *(pointer(address) for address in places))
    function = KernelLibrary(gpu).function("argmax", {}, ARGMAX_THREADS)
    for _ in range(2):
        gpu.launch(Launch("argmax", function, (ARGMAX_SHARES, WIDTH), arguments))
    found = np.empty((rows, ANSWER_WORDS), np.int32)
    gpu.download(found, answers)
    gpu.synchronize()
    return [(int(token), float(np.int32(bits).view(np.float32))) for token, bits, *_ in found]


@pytest.mark.parametrize("vocabulary", [1, 7, 31, 96, 1023, 50_257, 128_256, 262_144])
def test_it_is_numpys(gpu: Gpu, vocabulary: int) -> None:
    random = np.random.default_rng(vocabulary)
    logits = random.standard_normal((6, vocabulary)).astype(np.float32)
    logits[1] = np.round(logits[1])  # many equals
    logits[2] = -np.inf
    logits[3, -1] = np.inf
    logits[4] = np.where(np.arange(vocabulary) % 2, 0.0, -0.0)
    wanted = [(int(row.argmax()), float(row.max())) for row in logits]
    assert best(gpu, logits) == wanted


def test_a_row_with_nan_answers_nan_and_its_neighbours_do_not(gpu: Gpu) -> None:
    logits = np.random.default_rng(1).standard_normal((WIDTH, 5000)).astype(np.float32)
    logits[7, 4321] = np.nan
    found = best(gpu, logits)
    assert [np.isnan(value) for _, value in found] == [row == 7 for row in range(WIDTH)]
    assert [token for token, _ in found] == [4321 if row == 7 else int(logits[row].argmax()) for row in range(WIDTH)]
