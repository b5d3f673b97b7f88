"""Sessions on a GPU's engine, whose steps run beside the process: the tokens of each are those it draws alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.profile import read_bandwidth, read_launch
from decodepool_worker.engine.rows import OverlappingEngine, Sampling
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.verify.lab import Listener

from tests.gpu.test_engine import ON_GPU, MakeFile, opened, tiny_file
from tests.tiny.catalogue import WEIGHT_TYPES

__all__ = ["tiny_file"]

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

SAMPLINGS = (Sampling(temperature=0.0), Sampling(temperature=0.9, top_p=0.9), Sampling(temperature=1.1, top_k=20))


def drawn(residence: Residence, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Decode every prompt, all side by side, and return what each drew."""
    listeners = []
    for index, tokens in enumerate(prompts):
        session = residence.create(tokens, seed=index, sampling=SAMPLINGS[index % len(SAMPLINGS)])
        listener = Listener()
        listeners.append(listener)
        while residence.tick():
            pass
        residence.decode(session.id, DecodeRequest(count), listener)
        for _ in range(index % 3):
            residence.tick()
    while residence.tick():
        pass
    assert residence.fault is None
    return [listener.tokens for listener in listeners]


def test_tokens_are_those_of_a_lone_session_whose_steps_are_read_one_by_one(tiny_file: MakeFile) -> None:
    prompts = [[(i * 7 + index * 3) % 96 for i in range(5 + 13 * index)] for index in range(9)]
    with opened(tiny_file(WEIGHT_TYPES[0])) as engine:
        assert isinstance(engine, OverlappingEngine)
        together = drawn(Residence(engine, context_tokens=192, sessions=16), prompts, 40)
    with opened(tiny_file(WEIGHT_TYPES[0]), replace(ON_GPU, chained=False)) as engine:
        alone = []
        for index, tokens in enumerate(prompts):
            residence = Residence(engine, context_tokens=192, sessions=1)
            session = residence.create(tokens, seed=index, sampling=SAMPLINGS[index % len(SAMPLINGS)])
            listener = Listener()
            residence.decode(session.id, DecodeRequest(40), listener)
            while residence.tick():
                pass
            alone.append(listener.tokens)
    assert together == alone
    assert all(len(tokens) == 40 for tokens in together)


def test_reading_leaves_the_exclusive_or_of_every_word(gpu: Gpu) -> None:
    words = np.random.default_rng(2).integers(0, 2**32, 4 * 100_003, np.uint32)
    address, sums = gpu.place(words), gpu.allocate(16 * 4 * gpu.sm_count)
    launch = read_launch(gpu, KernelLibrary(gpu), address, words.nbytes, sums)
    gpu.launch(launch)
    found = np.empty((launch.grid[0], 4), np.uint32)
    gpu.download(found, sums)
    gpu.synchronize()
    assert np.bitwise_xor.reduce(found).tolist() == np.bitwise_xor.reduce(words.reshape(-1, 4)).tolist()


def test_the_bandwidth_is_that_of_a_gpu_and_leaves_nothing_taken(gpu: Gpu) -> None:
    before = list(gpu._allocations)
    assert 5e10 < read_bandwidth(gpu) < 2e13
    assert gpu._allocations == before
