"""The best token of a row is NumPy's argmax, over vocabularies that blocks share evenly or not, again and again."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import argmax
from decodepool_kernels.cuda.argmax import ARGMAX_CLUSTER_CAPABILITY, CLUSTERS, Argmax
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.draws import LogitsSource
from decodepool_kernels.cuda.inputs import ANSWER_WORDS, HEADER_WORDS, MAX_ROWS, ROW_ARRAYS, WANTED, WANTED_SLOTS
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_sizing.layouts import round_up

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

WIDTH = 24
Best = tuple[int, float]


@pytest.fixture(params=["shares", *CLUSTERS], autouse=True)
def _program(request: pytest.FixtureRequest, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "shares":
        monkeypatch.setattr(argmax, "ARGMAX_CLUSTER_CAPABILITY", 0)
    elif gpu.capability != ARGMAX_CLUSTER_CAPABILITY:
        pytest.skip("did not run: this GPU has no clusters")
    else:
        monkeypatch.setattr(argmax, "CLUSTERS", [request.param])


def best(gpu: Gpu, logits: NDArray[np.float32]) -> tuple[list[Best], list[int]]:
    """Return (id, logit) of each row, of the second of two launches for WIDTH rows, and each one's last token; rows lie
    in slots reversed, a NaN behind each.
    """
    rows, vocabulary = logits.shape
    words = np.zeros(HEADER_WORDS + ROW_ARRAYS * MAX_ROWS, np.int32)
    words[WANTED] = rows
    words[HEADER_WORDS:].reshape(ROW_ARRAYS, MAX_ROWS)[WANTED_SLOTS, :rows] = np.arange(rows)[::-1]
    stride = round_up(vocabulary + 1, 16)
    resident = np.full((rows, stride), np.nan, np.float32)
    resident[:, :vocabulary] = logits[::-1]
    answers, last_tokens = gpu.allocate(4 * ANSWER_WORDS * WIDTH), gpu.allocate(4 * rows)
    source = LogitsSource(gpu.place(resident), stride, vocabulary, answers, gpu.place(words), last_tokens)
    launch = Argmax(gpu, KernelLibrary(gpu), source, WIDTH).launch(WIDTH)
    for _ in range(2):
        gpu.launch(launch)
    found, last = np.empty((rows, ANSWER_WORDS), np.int32), np.empty(rows, np.int32)
    gpu.download(found, answers)
    gpu.download(last, last_tokens)
    gpu.synchronize()
    return [(int(token), float(np.int32(bits).view(np.float32))) for token, bits, *_ in found], last[::-1].tolist()


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 31, 96, 1023, 50_257, 128_256, 131_073, 262_144])
def test_it_is_numpys(gpu: Gpu, vocabulary: int) -> None:
    random = np.random.default_rng(vocabulary)
    logits = random.standard_normal((8, vocabulary)).astype(np.float32)
    logits[1] = np.round(logits[1])  # many equals
    logits[2] = -np.inf
    logits[3, -1] = np.inf
    logits[4] = np.where(np.arange(vocabulary) % 2, 0.0, -0.0)
    logits[5] = -np.abs(logits[5]) * 1e-39
    logits[6, 0] = 9.0
    logits[7, vocabulary // 2] = 9.0
    found, last = best(gpu, logits)
    assert found == [(int(row.argmax()), float(row.max())) for row in logits]
    assert last == logits.argmax(1).tolist()


def test_a_row_with_nan_answers_the_first_and_its_neighbours_do_not(gpu: Gpu) -> None:
    logits = np.random.default_rng(1).standard_normal((WIDTH, 5000)).astype(np.float32)
    logits[7, [4701, 4321, 4400]] = np.nan, -np.float32(np.nan), np.inf
    found, _ = best(gpu, logits)
    assert [np.isnan(value) for _, value in found] == [row == 7 for row in range(WIDTH)]
    assert [token for token, _ in found] == [4321 if row == 7 else int(logits[row].argmax()) for row in range(WIDTH)]
