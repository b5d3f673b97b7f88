"""What does not fit the engine is a ValueError at its door, and leaves every bit as it was: compiled code would follow
it out of its memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from decodepool_worker.engine.open import MeasuredEngine
from decodepool_worker.engine.rows import Draw, Sampling, Span

from tests.tiny.catalogue import open_tiny
from tests.tiny.models import VOCABULARY, Tiny, write

CONTEXT, SESSIONS = 192, 2
TOKENS = [(i * 31 + 5) % VOCABULARY for i in range(70)]
GREEDY = Draw(Sampling(temperature=0.0), 0, 1, [])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredEngine]:
    path = tmp_path_factory.mktemp("one") / "tiny.gguf"
    write(Tiny(), path)
    with open_tiny(path, context=CONTEXT, sessions=SESSIONS) as engine:
        yield engine


def bits(engine: MeasuredEngine) -> bytes:
    """The logits of one more token after a prompt that is there: its pages are read, not written again."""
    engine.step([Span([0, 1], len(TOKENS), [7], slot=0)])
    return engine.logits(0).tobytes()


BAD = {
    "a position below 0": Span([0], -5, [1], 0),
    "rows from below 0 to above": Span([0], -1, [1, 2, 3], 0),
    "a position past its pages": Span([0], 64, [1], 0),
    "a position past the longest session": Span([0, 1, 2, 3], CONTEXT, [1], 0),
    "a position past every number": Span([0], 2**40, [1], 0),
    "no pages": Span([], 0, [1], 0),
    "a page below 0": Span([-1], 0, [1], 0),
    "a page past the last": Span([10_000], 0, [1], 0),
    "a second page past the last": Span([2, 10_000], 64, [1], 0),
    "a page past every number": Span([2**40], 0, [1], 0),
    "a token below 0": Span([2], 0, [-1], 0),
    "a token past the vocabulary": Span([2], 0, [1, VOCABULARY], 0),
    "a token past every number": Span([2], 0, [2**40], 0),
    "a slot below 0": Span([2], 0, [1], -1),
    "a slot past the last": Span([2], 0, [1], SESSIONS),
    "a draw from a slot below 0": Span([2], 1, [], -1, GREEDY),
    "a draw from a slot past the last": Span([2], 1, [], SESSIONS, GREEDY),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
@pytest.mark.parametrize("sound_before", [0, 1], ids=["alone", "after a sound one"])
def test_a_bad_span_is_refused_and_changes_nothing(engine: MeasuredEngine, bad: Span, sound_before: int) -> None:
    engine.step([Span([0, 1], 0, TOKENS, slot=0)])
    usual = bits(engine)
    with pytest.raises(ValueError, match=r"."):
        engine.step([*[Span([3], 0, [1], 1)] * sound_before, bad])
    assert bits(engine) == usual


def test_more_rows_than_a_step_has_are_refused(engine: MeasuredEngine) -> None:
    engine.step([Span([0, 1], 0, TOKENS, slot=0)])
    usual = bits(engine)
    with pytest.raises(ValueError, match=f"{engine.max_step_rows + 2} rows in a step of {engine.max_step_rows}"):
        engine.step([Span([2], 0, [1, 2], 1)] * (engine.max_step_rows // 2 + 1))
    assert bits(engine) == usual


@pytest.mark.parametrize(("source", "target"), [(-1, 0), (0, -1), (10_000, 0), (0, 10_000)])
def test_pages_that_are_not_there_are_not_copied(engine: MeasuredEngine, source: int, target: int) -> None:
    with pytest.raises(ValueError, match="page"):
        engine.copy_page(source, target)


@pytest.mark.parametrize(("source", "target"), [(-1, 0), (0, -1), (SESSIONS, 0), (0, SESSIONS)])
def test_logits_that_are_not_there_are_not_copied(engine: MeasuredEngine, source: int, target: int) -> None:
    with pytest.raises(ValueError, match="slot"):
        engine.copy_logits(source, target)
