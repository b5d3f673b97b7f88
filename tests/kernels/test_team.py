"""Threads: more of them than cores, several teams at once, callers from anywhere, and an end that is an end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, process_time

import numpy as np
import pytest
from decodepool_kernels.graph import Graph, Matrix, Tensor

from tests.kernels.matrices import planes
from tests.kernels.probe import Floats, Probe, Rows, assert_same_bits, numbers

WIDTH, LINES, CORES = 64, 64, os.cpu_count() or 1
MATRIX = planes("Q8_0", WIDTH, WIDTH).packed
X = numbers(0, LINES, WIDTH)


def chain(graph: Graph, t: dict[str, Tensor]) -> dict[str, Tensor]:
    """Eight products, each waiting for the one before."""
    x = t["x"]
    for _ in range(8):
        x = x + graph.matmul(x, Matrix("m", WIDTH, WIDTH))
    return {"y": x}


def probe_of(threads: int) -> Probe:
    return Probe({"x": X}, chain, matrices={"m": MATRIX}, threads=threads)


def step_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("decodepool-step")]


@pytest.fixture(scope="module")
def wanted() -> Floats:
    with probe_of(1) as probe:
        return probe.rows(range(LINES))


def steps(probe: Probe, wanted: Floats, count: int, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    for _ in range(count):
        tokens = random.permutation(LINES)[: random.integers(1, 9)].tolist()
        assert_same_bits(probe.rows(tokens), wanted[tokens])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("threads", "count"), [(2, 200), (2 * CORES, 200), (2 * CORES + 3, 50)])
def test_a_team_larger_than_the_machine_gets_on(threads: int, count: int, wanted: Floats) -> None:
    with probe_of(threads) as probe:
        steps(probe, wanted, count)


def test_closing_ends_every_thread_and_may_be_done_twice() -> None:
    before = step_threads()
    probe = probe_of(4)
    assert len(step_threads()) == len(before) + 3
    probe.rows([1])
    probe.backend.close()
    assert step_threads() == before
    probe.backend.close()


def test_a_team_that_never_stepped_can_be_closed() -> None:
    before = step_threads()
    probe_of(3).backend.close()
    assert step_threads() == before


def test_two_teams_step_at_once(wanted: Floats) -> None:
    with probe_of(2) as first, probe_of(3) as second, ThreadPoolExecutor(2) as pool:
        done = [pool.submit(steps, probe, wanted, 50, seed) for seed, probe in enumerate((first, second))]
        for future in done:
            future.result(timeout=100)


def test_a_team_may_be_led_from_another_thread_than_its_maker(wanted: Floats) -> None:
    with probe_of(2) as probe, ThreadPoolExecutor(1) as pool:
        steps(probe, wanted, 5)
        pool.submit(steps, probe, wanted, 5).result(timeout=100)
        steps(probe, wanted, 5)


def test_python_goes_on_while_a_step_runs() -> None:
    """The GIL is free: another thread counts on while a long step runs in this one."""
    with Probe({"x": X}, chain, matrices={"m": MATRIX}, max_rows=4096, table_width=64) as probe:
        rows = [Rows((0,) * 4096, range(64))]
        probe.step(*rows)
        stop = threading.Event()
        counts: list[int] = []
        counter = threading.Thread(target=_count_until, args=(stop, counts.append))
        counter.start()
        start = monotonic()
        while monotonic() - start < 0.3:
            probe.backend.run(rows)
        stop.set()
        counter.join()
    assert counts[0] > 20


def _count_until(stop: threading.Event, report: Callable[[int], None]) -> None:
    count = 0
    while not stop.wait(0.001):
        count += 1
    report(count)


def test_a_team_that_waits_burns_no_time() -> None:
    with probe_of(4) as probe:
        probe.rows([1])
        before = process_time()
        threading.Event().wait(0.3)
        assert process_time() - before < 0.1
