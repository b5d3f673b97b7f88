"""The exactness gates on every architecture, type of weight and type of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from decodepool_sizing.kv import KVType
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Sampled, Sampling, Span
from decodepool_worker.verify.gates import GATES, run_gates, run_long_gate
from decodepool_worker.verify.lab import CONTEXT_TOKENS, STREAM_LENGTHS, Lab
from decodepool_worker.verify.long_gate import LONG_CONTEXT_TOKENS, LONG_SESSIONS

from tests.tiny.catalogue import VARIANTS, WEIGHT_TYPES, all_logits, open_tiny
from tests.tiny.models import Tiny
from tests.tiny.overflow import HUGE_TOKEN, with_a_token_that_overflows

MakeFile = Callable[[Tiny], Path]


def hold_to_the_gates(path: Path, kv_type: KVType, threads: int = 2) -> None:
    with open_tiny(path, context=CONTEXT_TOKENS, kv_type=kv_type, threads=threads) as engine:
        results = list(run_gates(Lab(engine)))
    with open_tiny(
        path, context=LONG_CONTEXT_TOKENS, sessions=LONG_SESSIONS, kv_type=kv_type, threads=threads
    ) as engine:
        results.append(run_long_gate(engine))
    assert [result.difference for result in results] == [None] * (len(GATES) + 1)
    assert sum(result.rows for result in results) > 1000


@pytest.mark.parametrize("tiny", [*VARIANTS, *WEIGHT_TYPES], ids=str)
def test_every_model_passes_every_gate(tiny: Tiny, tiny_file: MakeFile) -> None:
    hold_to_the_gates(tiny_file(tiny), KVType.F16, threads=1)


@pytest.mark.parametrize("kv_type", [KVType.F32, KVType.Q8_0], ids=str)
def test_every_way_to_keep_keys_and_values_passes_every_gate(kv_type: KVType, tiny_file: MakeFile) -> None:
    hold_to_the_gates(tiny_file(VARIANTS[-1]), kv_type, threads=1)


@pytest.mark.parametrize("threads", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_threads_passes_every_gate(threads: int, tiny_file: MakeFile) -> None:
    hold_to_the_gates(tiny_file(WEIGHT_TYPES[4]), KVType.F16, threads)


@pytest.mark.parametrize("kv_type", list(KVType), ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(kv_type: KVType, tiny_file: MakeFile) -> None:
    path, tokens = tiny_file(WEIGHT_TYPES[4]), list(range(90))
    found = []
    for threads in (1, 2, 5):
        with open_tiny(path, kv_type=kv_type, threads=threads) as engine:
            found.append(all_logits(engine, tokens).tobytes())
    assert len(set(found)) == 1


def test_long_sessions_fold_groups_of_pages_alike_in_every_chunking(tiny_file: MakeFile) -> None:
    """1000 tokens: 8 pages are a group of attention, so this crosses into a second one."""
    tokens = [(i * 31 + i * i) % 96 for i in range(1000)]
    with open_tiny(tiny_file(VARIANTS[0]), context=1000, sessions=32) as engine:
        alone = all_logits(engine, tokens)
        for chunk in (7, 64, 256):
            for begin in range(0, len(tokens), chunk):
                rows = tokens[begin : begin + chunk]
                engine.step([Span(range(16, 32), begin, rows, 0)])
                assert engine.logits(0).tobytes() == alone[begin + len(rows) - 1].tobytes()


def test_a_session_whose_numbers_overflow_ends_alone(tiny_file: MakeFile, tmp_path: Path) -> None:
    """Its keys and values stay behind in a page, where a later session must not meet them."""
    path = tmp_path / "overflowing.gguf"
    path.write_bytes(with_a_token_that_overflows(tiny_file(VARIANTS[0])))
    greedy = Sampling(temperature=0.0)
    with open_tiny(path) as engine:
        tokens = list(range(1, 21))
        engine.step([Span([0], 0, tokens, 0)])
        alone = engine.logits(0).copy()
        fatal = Span([2], 0, [*range(1, 40), HUGE_TOKEN], 2, Draw(greedy, 0, 40, []))
        beside = Span([1], 0, tokens, 1, Draw(greedy, 0, 20, tokens))
        for spans in ([fatal, beside], [beside, fatal]):
            outcomes = dict(zip([span.slot for span in spans], engine.step(spans), strict=True))
            assert isinstance(outcomes[2], NonFiniteLogits)
            assert isinstance(outcomes[1], Sampled)
            assert engine.logits(1).tobytes() == alone.tobytes()
        engine.step([Span([2], 0, tokens, 3)])
        assert engine.logits(3).tobytes() == alone.tobytes()


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("kv_type", list(KVType), ids=str)
def test_smollm2_passes_every_gate(kv_type: KVType, smollm2: Path) -> None:
    hold_to_the_gates(smollm2, kv_type)


def test_the_streams_cross_pages() -> None:
    assert STREAM_LENGTHS[0] > 128
    assert STREAM_LENGTHS[1] > 64
