"""Many draws of one step: the same tokens as one by one, by several threads where that is worth it."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from decodepool_sizing.devices import LOADING_SCRATCH_BYTES
from decodepool_sizing.workspace import DRAW_BYTES, DRAWING_THREADS
from decodepool_worker.engine.drawing import Drawers, Job
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Sampled, Sampling
from decodepool_worker.engine.sampling import draw_token

from tests.tiny.catalogue import VARIANTS, open_tiny
from tests.tiny.models import Tiny

GREEDY = Sampling(temperature=0.0)
LONG = Sampling()
KINDS = (
    Draw(GREEDY, 1, 0, ()),
    Draw(LONG, 1, 0, ()),
    Draw(Sampling(0.8, top_p=0.9), 2, 1, ()),
    Draw(Sampling(0.8, top_k=40), 3, 2, ()),
    Draw(Sampling(0.8, repetition_penalty=1.2), 4, 3, range(50)),
    Draw(GREEDY, 5, 4, (), top_logprobs=5),
)


@pytest.fixture(params=[1, 2, 3, 8], ids=lambda threads: f"{threads} threads")
def drawers(request: pytest.FixtureRequest) -> Iterator[Drawers]:
    drawers = Drawers(request.param)
    yield drawers
    drawers.close()


def row(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(3000).astype(np.float32)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 64])
def test_draws_are_those_of_one_by_one_in_their_order(drawers: Drawers, count: int) -> None:
    jobs: list[Job] = [(row(i), KINDS[i % len(KINDS)]) for i in range(count)]
    assert drawers.draw(jobs) == [draw_token(*job) for job in jobs]


def test_a_row_that_is_not_finite_is_its_own_fault_alone(drawers: Drawers) -> None:
    jobs: list[Job] = [(row(i), KINDS[1]) for i in range(6)]
    jobs[2][0][7] = np.nan
    found = drawers.draw(jobs)
    assert [type(outcome) for outcome in found] == [NonFiniteLogits if i == 2 else Sampled for i in range(6)]


def threads_of(jobs: list[Job], threads: int, meet: int) -> set[str]:
    """Return the names of the threads that draw; `meet` of them must be at it at the same time."""
    barrier, names = threading.Barrier(meet, timeout=20), set[str]()

    def meeting(logits: np.ndarray[tuple[int], np.dtype[np.float32]], draw: Draw) -> Sampled:
        names.add(threading.current_thread().name)
        barrier.wait()
        return Sampled(0)

    drawers = Drawers(threads, meeting)
    drawers.draw(jobs)
    drawers.close()
    return names


@pytest.mark.parametrize(("draws", "threads", "at_once"), [(2, 2, 2), (6, 3, 3), (2, 8, 2)])
def test_long_draws_are_shared_out(draws: int, threads: int, at_once: int) -> None:
    jobs: list[Job] = [(row(i), KINDS[1]) for i in range(draws)]
    names = threads_of(jobs, threads, at_once)
    assert len(names) == at_once
    assert threading.current_thread().name in names


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]], ids=["greedy", "top k"])
def test_short_draws_wake_nobody(kind: Draw) -> None:
    jobs: list[Job] = [(row(i), kind) for i in range(9)]
    assert threads_of(jobs, 4, 1) == {threading.current_thread().name}


VOCABULARY = 40_000
LARGEST_VOCABULARY = 151_936
"""Of the models that are usual on a CPU."""
HISTORY = range(VOCABULARY // 8)
FLAT = Sampling(temperature=100.0, top_p=1 - 2**-53, repetition_penalty=1.1)


def peak_bytes(draw: Draw) -> float:
    """Return the most that a draw takes, for each token of the vocabulary."""
    logits = np.random.default_rng(1).normal(0, 4, VOCABULARY).astype(np.float32)
    tracemalloc.start()
    try:
        draw_token(logits, draw)
        return tracemalloc.get_traced_memory()[1] / VOCABULARY
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(top_p=0.99, min_p=0.01),
        Sampling(top_k=1000, top_p=0.9, repetition_penalty=1.1),
        Sampling(1.3, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("top_logprobs", [None, 20])
def test_a_draw_takes_what_is_planned_for_it(sampling: Sampling, top_logprobs: int | None) -> None:
    assert peak_bytes(Draw(sampling, 1, len(HISTORY), HISTORY, top_logprobs)) <= DRAW_BYTES


@pytest.mark.parametrize("history", [HISTORY, range(VOCABULARY)], ids=["some seen", "all seen"])
def test_what_the_longest_draws_take_beyond_that_fits_where_loading_was(history: range) -> None:
    beyond = peak_bytes(Draw(FLAT, 1, len(history), history, 20)) - DRAW_BYTES
    assert 0 < DRAWING_THREADS * beyond * LARGEST_VOCABULARY <= LOADING_SCRATCH_BYTES


@pytest.mark.parametrize(("threads", "drawing"), [(2, 2), (2 * DRAWING_THREADS, DRAWING_THREADS)])
def test_no_more_threads_draw_than_are_planned_for(
    threads: int, drawing: int, tiny_file: Callable[[Tiny], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    class Counted(Drawers):
        def __init__(self, threads: int) -> None:
            made.append(threads)
            super().__init__(threads)

    monkeypatch.setattr("decodepool_worker.engine.cpu.Drawers", Counted)
    with open_tiny(tiny_file(VARIANTS[0]), threads=threads):
        assert made == [drawing]
