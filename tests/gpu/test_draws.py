"""Tokens drawn on the GPU are those of the program's twin on the host, whatever is asked and however many are drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import draws as drawing
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.draws import Draws, LogitsSource
from decodepool_kernels.cuda.inputs import ANSWER_WORDS, HEADER_WORDS, MAX_ROWS, ROW_ARRAYS, WANTED_SLOTS
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_worker.engine.device_draws import device_draw
from decodepool_worker.engine.device_sampling import draw_as_device
from decodepool_worker.engine.rows import Draw, Sampled, Sampling

from tests.engine.test_device_sampling import ROWS, SAMPLINGS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


def drawn(gpu: Gpu, logits: NDArray[np.float32], draws: Sequence[Draw]) -> list[int]:
    """Draw from each row of `logits`, `[rows, vocabulary]`: row i lies in slot rows - 1 - i."""
    rows, vocabulary = logits.shape
    words = np.zeros(HEADER_WORDS + ROW_ARRAYS * MAX_ROWS, np.int32)
    words[HEADER_WORDS:].reshape(ROW_ARRAYS, MAX_ROWS)[WANTED_SLOTS, :rows] = np.arange(rows)[::-1]
    largest = logits.argmax(1)
    answers = np.zeros((rows, ANSWER_WORDS), np.int32)
    answers[:, 0], answers[:, 1] = largest, logits[np.arange(rows), largest].view(np.int32)
    last_tokens = largest[::-1].astype(np.int32)
    places = (gpu.place(answers), gpu.place(words), gpu.place(last_tokens))
    source = LogitsSource(gpu.place(logits[::-1]), vocabulary, vocabulary, *places)
    drawing = Draws(gpu, KernelLibrary(gpu), source)
    drawing.ask(0, [device_draw(draw) for draw in draws])
    drawing.draw(rows)
    gpu.download(answers, source.answers)
    gpu.download(last_tokens, source.last_tokens)
    gpu.synchronize()
    found: list[int] = answers[:, 2].tolist()
    wanted = [best if device_draw(d) is None else t for d, t, best in zip(draws, found, largest, strict=True)]
    assert last_tokens[::-1].tolist() == wanted
    return found


def token_of(logits: NDArray[np.float32], draw: Draw) -> int:
    outcome = draw_as_device(logits, draw)
    assert isinstance(outcome, Sampled)
    return outcome.token


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_device_draws_as_its_twin(gpu: Gpu, row: str, sampling: Sampling) -> None:
    draws = [Draw(sampling, 2**63 + 5, position, []) for position in range(24)]
    logits = np.tile(ROWS[row], (24, 1))
    assert drawn(gpu, logits, draws) == [token_of(ROWS[row], draw) for draw in draws]


@pytest.mark.parametrize("vocabulary", [1023, 49_152, 128_256, 151_936, 262_144])
def test_so_it_does_from_vocabularies_of_every_size(gpu: Gpu, vocabulary: int) -> None:
    random = np.random.default_rng(vocabulary)
    logits = (random.standard_normal((len(SAMPLINGS), vocabulary)) * 2).astype(np.float32)
    draws = [Draw(sampling, 77, index, []) for index, sampling in enumerate(SAMPLINGS.values())]
    assert drawn(gpu, logits, draws) == [token_of(row, draw) for row, draw in zip(logits, draws, strict=True)]


def test_without_clusters_the_tokens_are_the_same(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = (np.random.default_rng(8).standard_normal((len(SAMPLINGS), 50_257)) * 2).astype(np.float32)
    draws = [Draw(sampling, 77, index, []) for index, sampling in enumerate(SAMPLINGS.values())]
    usual = drawn(gpu, logits, draws)
    monkeypatch.setattr(drawing, "DRAW_CLUSTER_CAPABILITY", 0)
    assert drawn(gpu, logits, draws) == usual
