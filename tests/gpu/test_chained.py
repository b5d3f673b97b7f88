"""Steps that begin before the one ahead has been read: the tokens they follow never leave the device in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_worker.engine.rows import (
    Draw,
    Engine,
    NonFiniteLogits,
    Outcome,
    OverlappingEngine,
    Sampled,
    Sampling,
    Span,
)

from tests.gpu.test_engine import MakeFile, opened, tiny_file
from tests.tiny.catalogue import VARIANTS, WEIGHT_TYPES
from tests.tiny.models import Tiny
from tests.tiny.overflow import HUGE_TOKEN, with_a_token_that_overflows

__all__ = ["tiny_file"]

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

SAMPLINGS = (Sampling(temperature=0.0), Sampling(temperature=0.9, top_p=0.9), Sampling(temperature=1.1, top_k=20))
STEPS = 70
"""More than a page."""


def row(session: int, position: int, token: int, *, follows: bool = False) -> Span:
    """Return one row of a session, in a slot that is not its number, which draws."""
    draw = Draw(SAMPLINGS[session % len(SAMPLINGS)], session, position + 1, [])
    return Span([2 * session, 2 * session + 1], position, [token], 40 - session, draw, follows)


def tokens_of(outcomes: Sequence[Outcome]) -> list[int]:
    assert all(isinstance(outcome, Sampled) for outcome in outcomes), outcomes
    return [outcome.token for outcome in outcomes if isinstance(outcome, Sampled)]


def read_one_by_one(engine: Engine, sessions: int) -> list[list[int]]:
    tokens, found = list(range(1, sessions + 1)), []
    for position in range(STEPS):
        tokens = tokens_of(engine.step([row(i, position, token) for i, token in enumerate(tokens)]))
        found.append(tokens)
    return found


def chained(engine: OverlappingEngine, sessions: int) -> list[list[int]]:
    """The same with two steps under way; the order of the sessions turns from step to step."""
    under_way = engine.begin([row(i, 0, i + 1) for i in range(sessions)])
    order, found = list(range(sessions)), []
    for position in range(1, STEPS):
        turned = [*order[1:], order[0]]
        following = engine.begin([row(i, position, 95, follows=True) for i in turned])
        tokens = dict(zip(order, tokens_of(under_way()), strict=True))
        found.append([tokens[i] for i in range(sessions)])
        under_way, order = following, turned
    tokens = dict(zip(order, tokens_of(under_way()), strict=True))
    return [*found, [tokens[i] for i in range(sessions)]]


@pytest.mark.parametrize("sessions", [1, 2, 9, 33])
@pytest.mark.parametrize("tiny", [VARIANTS[0], *WEIGHT_TYPES[:2]], ids=str)
def test_rows_that_follow_have_the_bytes_of_rows_whose_token_was_read(
    tiny: Tiny, sessions: int, tiny_file: MakeFile
) -> None:
    found = []
    for way in (read_one_by_one, chained):
        with opened(tiny_file(tiny)) as engine:
            assert isinstance(engine, OverlappingEngine)
            run: Callable[[OverlappingEngine, int], list[list[int]]] = way
            tokens = run(engine, sessions)
            found.append((tokens, [engine.logits(40 - i).tobytes() for i in range(sessions)]))
    assert found[0] == found[1]


def test_whoever_follows_logits_that_are_not_finite_disturbs_nobody(tiny_file: MakeFile, tmp_path: Path) -> None:
    path = tmp_path / "overflowing.gguf"
    path.write_bytes(with_a_token_that_overflows(tiny_file(VARIANTS[0])))
    with opened(path) as engine:
        assert isinstance(engine, OverlappingEngine)
        alone = [engine.step([row(3, 0, 5)]), engine.step([row(3, 1, 6)])]
        bytes_alone = engine.logits(37).tobytes()
        for fatal in range(3):
            first = engine.begin([row(fatal, 0, HUGE_TOKEN), row(3, 0, 5)])
            second = engine.begin([row(fatal, 1, 0, follows=True), row(3, 1, 6)])
            broken, beside = first()
            assert isinstance(broken, NonFiniteLogits)
            assert [beside] == alone[0]
            assert second()[1:] == alone[1]
            assert engine.logits(37).tobytes() == bytes_alone


def test_a_third_step_waits_until_the_first_has_been_read(tiny_file: MakeFile) -> None:
    with opened(tiny_file(WEIGHT_TYPES[0])) as engine:
        assert isinstance(engine, OverlappingEngine)
        first, second = engine.begin([row(0, 0, 1)]), engine.begin([row(0, 1, 0, follows=True)])
        with pytest.raises(RuntimeError, match="2 steps are under way"):
            engine.begin([row(0, 2, 0, follows=True)])
        read = [*first(), *second(), *engine.step([row(0, 2, 0, follows=True)])]
    with opened(tiny_file(WEIGHT_TYPES[0])) as engine:
        assert tokens_of(read) == [tokens for (tokens,) in read_one_by_one(engine, 1)[:3]]
