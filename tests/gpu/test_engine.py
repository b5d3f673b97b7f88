"""Whole models on the GPU: every gate of exactness, near f64, fused and plain, with graphs and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_sizing.kv import KVType
from decodepool_sizing.readers import file_reader
from decodepool_worker.engine.device_sampling import draw_as_device
from decodepool_worker.engine.open import MeasuredEngine, Wanted, read_model
from decodepool_worker.engine.open_cuda import open_on_gpu
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Sampled, Sampling, Span
from decodepool_worker.engine.sampling import draw_token
from decodepool_worker.verify.gates import GATES, run_gates
from decodepool_worker.verify.lab import CONTEXT_TOKENS, SESSIONS, Lab

from tests.tiny.catalogue import VARIANTS, WEIGHT_TYPES, all_logits
from tests.tiny.models import Tiny, write
from tests.tiny.overflow import HUGE_TOKEN, with_a_token_that_overflows
from tests.tiny.reference import Reference

pytestmark = pytest.mark.gpu

MOST_KL = 1e-6
"""Mean, against f64 on the same weights, with f16 keys and values."""
MakeFile = Callable[[Tiny], Path]
TOKENS = [(i * 31 + i * i) % 96 for i in range(150)]


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tiny], Path]:
    folder, made = tmp_path_factory.mktemp("tiny"), dict[Tiny, Path]()

    def path_of(tiny: Tiny) -> Path:
        if tiny not in made:
            made[tiny] = folder / f"{len(made)}.gguf"
            write(tiny, made[tiny])
        return made[tiny]

    return path_of


ON_GPU = Wanted(CONTEXT_TOKENS, SESSIONS, device="cuda")


@contextmanager
def opened(path: Path, wanted: Wanted = ON_GPU) -> Iterator[MeasuredEngine]:
    """Open a model's engine for the time of a `with`."""
    with file_reader(path) as reader:
        engine = open_on_gpu(read_model(reader), reader, wanted).engine
    try:
        yield engine
    finally:
        engine.close()


def kl(wanted: NDArray[np.float64], found: NDArray[np.float32]) -> float:
    """Return the mean divergence of what was found from what was wanted."""
    p, q = (_log_softmax(part.astype(np.float64)) for part in (wanted, found))
    return float((np.exp(p) * (p - q)).sum(1).mean())


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("tiny", [*VARIANTS, *WEIGHT_TYPES], ids=str)
def test_every_model_is_near_f64_and_passes_every_gate(tiny: Tiny, tiny_file: MakeFile) -> None:
    path = tiny_file(tiny)
    with opened(path) as engine:
        assert kl(Reference(path).logits(TOKENS), all_logits(engine, TOKENS)) < MOST_KL
        results = list(run_gates(Lab(engine)))
    assert [result.difference for result in results] == [None] * len(GATES)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("tiny", [VARIANTS[-1], WEIGHT_TYPES[2]], ids=str)
def test_q8_0_keys_and_values_pass_every_gate(tiny: Tiny, tiny_file: MakeFile) -> None:
    with opened(tiny_file(tiny), replace(ON_GPU, kv_type=KVType.Q8_0)) as engine:
        results = list(run_gates(Lab(engine)))
    assert [result.difference for result in results] == [None] * len(GATES)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("tiny", [*VARIANTS[::4], *WEIGHT_TYPES], ids=str)
def test_one_operation_a_launch_and_launch_by_launch_give_the_same_bytes(tiny: Tiny, tiny_file: MakeFile) -> None:
    found = []
    for wanted in (ON_GPU, replace(ON_GPU, fused=False), replace(ON_GPU, graphs=False)):
        with opened(tiny_file(tiny), wanted) as engine:
            found.append(all_logits(engine, TOKENS).tobytes())
    assert len(set(found)) == 1


@pytest.mark.usefixtures("gpu")
def test_long_sessions_have_the_same_bytes_in_every_chunking(tiny_file: MakeFile) -> None:
    """3000 tokens: 47 pages, 6 groups of attention."""
    tokens = [(i * 31 + i * i) % 96 for i in range(3000)]
    with opened(tiny_file(WEIGHT_TYPES[2]), replace(ON_GPU, context_tokens=3000, sessions=32)) as engine:
        alone = all_logits(engine, tokens)
        for chunk in (7, 64, 100, 256, 512):
            for begin in range(0, len(tokens), chunk):
                rows = tokens[begin : begin + chunk]
                engine.step([Span(range(60, 120), begin, rows, 0)])
                assert engine.logits(0).tobytes() == alone[begin + len(rows) - 1].tobytes()


@pytest.mark.usefixtures("gpu")
def test_the_devices_greedy_draw_is_the_samplers(tiny_file: MakeFile) -> None:
    greedy = Sampling(temperature=0.0)
    with opened(tiny_file(WEIGHT_TYPES[0])) as engine:
        spans = [Span([row], 0, [row * 3, 5], row, Draw(greedy, 0, 2, [])) for row in range(32)]
        for span, outcome in zip(spans, engine.step(spans), strict=True):
            assert span.draw is not None
            assert outcome == draw_token(engine.logits(span.slot or 0), span.draw)


@pytest.mark.usefixtures("gpu")
def test_random_draws_are_made_on_the_device_beside_greedy_ones_and_here_from_what_is_resident(
    tiny_file: MakeFile,
) -> None:
    greedy, random = Sampling(temperature=0.0), Sampling(temperature=0.8, top_p=0.9)
    with opened(tiny_file(WEIGHT_TYPES[0])) as engine:
        spans = [Span([row], 0, [row], row, Draw(random if row % 2 else greedy, 7, 1, [])) for row in range(9)]
        outcomes = engine.step(spans)
        assert outcomes == [draw_as_device(engine.logits(i), span.draw) for i, span in enumerate(spans) if span.draw]
        again = [Span([row], 1, [], row, Draw(random if row % 2 else greedy, 7, 1, [])) for row in range(9)]
        assert engine.step(again) == outcomes


@pytest.mark.usefixtures("gpu")
def test_a_session_whose_numbers_overflow_ends_alone(tiny_file: MakeFile, tmp_path: Path) -> None:
    path = tmp_path / "overflowing.gguf"
    path.write_bytes(with_a_token_that_overflows(tiny_file(VARIANTS[0])))
    greedy, tokens = Sampling(temperature=0.0), list(range(1, 21))
    with opened(path) as engine:
        engine.step([Span([0], 0, tokens, 0)])
        alone = engine.logits(0).copy()
        fatal = Span([2], 0, [*range(1, 40), HUGE_TOKEN], 2, Draw(greedy, 0, 40, []))
        beside = Span([1], 0, tokens, 1, Draw(greedy, 0, 20, tokens))
        outcomes = engine.step([fatal, beside])
        assert isinstance(outcomes[0], NonFiniteLogits)
        assert isinstance(outcomes[1], Sampled)
        assert engine.logits(1).tobytes() == alone.tobytes()
        engine.step([Span([2], 0, tokens, 3)])
        assert engine.logits(3).tobytes() == alone.tobytes()


@pytest.mark.usefixtures("gpu")
def test_what_is_not_there_is_refused_before_it_reaches_the_device(tiny_file: MakeFile) -> None:
    with opened(tiny_file(WEIGHT_TYPES[0])) as engine:
        beyond = engine.page_count
        for span in (
            Span([beyond], 0, [1]),
            Span([-1], 0, [1]),
            Span([0], 64, [1]),
            Span([0], 0, [1], SESSIONS),
            Span([0], 0, [96]),
        ):
            with pytest.raises(ValueError, match=r"page|slot|vocabulary"):
                engine.step([span])
        for call in (
            lambda: engine.copy_page(0, beyond),
            lambda: engine.logits(SESSIONS),
            lambda: engine.copy_logits(0, -1),
        ):
            with pytest.raises(ValueError, match=r"page|slot"):
                call()


@pytest.mark.usefixtures("gpu")
def test_draws_that_the_device_does_not_make_take_part_in_the_step(tiny_file: MakeFile) -> None:
    samplings = (
        Sampling(temperature=0.7, logit_bias=((5, 3.0),)),
        Sampling(temperature=0.0, repetition_penalty=1.3),
        Sampling(temperature=0.9, presence_penalty=0.5, frequency_penalty=0.5),
        Sampling(temperature=0.8),
    )
    with opened(tiny_file(WEIGHT_TYPES[0])) as engine:
        draws = [Draw(sampling, 3, 4, [1, 2, 1, 7]) for sampling in samplings]
        draws.append(replace(draws[3], top_logprobs=4))
        spans = [Span([row], 0, [1, 2, 1, 7], row, draw) for row, draw in enumerate(draws)]
        outcomes = engine.step(spans)
        assert outcomes == [draw_as_device(engine.logits(row), draw) for row, draw in enumerate(draws)]
        assert isinstance(outcomes[3], Sampled)
        assert isinstance(outcomes[4], Sampled)
        assert outcomes[3].token == outcomes[4].token
