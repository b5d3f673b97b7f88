"""What `bench` times is what a server sees: steps of one context whose clocks have settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from decodepool_cli import measuring
from decodepool_cli.cases import shape_cases
from decodepool_cli.measuring import LONG_PROMPT_TOKENS, MIN_STEPS, ROOM_TOKENS, STEP_SECONDS, time_decode, time_prefill
from decodepool_sizing.kv import pages
from decodepool_worker.engine.rows import PAGE_TOKENS, Outcome, Sampled, Span
from numpy.typing import NDArray

RESTED, SETTLED = 2e-3, 3e-3
SETTLES_AFTER_SECONDS = 0.4


@dataclass
class SettlingEngine:
    """An engine that runs faster until it has worked for a while, and the only clock there is."""

    settled_seconds: float = SETTLED
    page_count: int = 64
    slot_count: int = 4
    max_step_rows: int = 16
    vocabulary_size: int = 100
    now: float = 1000.0
    stepped: list[list[Span]] = field(default_factory=list)

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        self.stepped.append(list(spans))
        self.now += RESTED if self.now < 1000 + SETTLES_AFTER_SECONDS else self.settled_seconds
        return [Sampled(7) for _ in spans]

    def copy_page(self, source: int, target: int) -> None: ...
    def logits(self, slot: int) -> NDArray[np.float32]:
        raise NotImplementedError

    def copy_logits(self, source: int, target: int) -> None: ...
    def close(self) -> None: ...


@dataclass
class OverlappingSettlingEngine(SettlingEngine):
    under_way: int = 0

    def begin(self, spans: Sequence[Span]) -> Callable[[], list[Outcome]]:
        self.under_way += 1
        assert self.under_way <= 2

        def end() -> list[Outcome]:
            self.under_way -= 1
            return [Sampled(7) for _ in spans]

        self.step(spans)
        return end

    def can_be_followed(self, spans: Sequence[Span]) -> bool:
        return True


@pytest.fixture(params=[SettlingEngine, OverlappingSettlingEngine], ids=["by itself", "overlapping"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SettlingEngine:
    engine: SettlingEngine = request.param()
    monkeypatch.setattr(measuring, "perf_counter", lambda: engine.now)
    return engine


def test_steps_are_timed_once_their_clocks_have_settled(engine: SettlingEngine) -> None:
    timing = time_decode(engine, [[0, 1]], 64)
    assert timing.seconds == pytest.approx([SETTLED] * len(timing.seconds))
    assert STEP_SECONDS <= sum(timing.seconds) < STEP_SECONDS + 2 * SETTLED


def test_prompts_are_timed_once_their_clocks_have_settled(engine: SettlingEngine) -> None:
    timing = time_prefill(engine, [0], [1] * 40)
    assert timing.seconds == pytest.approx([3 * SETTLED] * 3)


def test_a_long_prompt_is_timed_once_its_beginning_has_settled_the_clocks(engine: SettlingEngine) -> None:
    timing = time_prefill(engine, [0], [1] * (LONG_PROMPT_TOKENS + 1))
    steps = LONG_PROMPT_TOKENS // engine.max_step_rows
    assert timing.seconds == pytest.approx([(steps + 1) * SETTLED])
    assert len(engine.stepped) % steps == 1


def test_what_was_timed_lies_between_the_readings_that_go_with_it(engine: SettlingEngine) -> None:
    timing = time_decode(engine, [[0, 1]], 64)
    assert timing.began >= 1000 + SETTLES_AFTER_SECONDS
    assert timing.ended - timing.began == pytest.approx(sum(timing.seconds))
    assert timing.ended <= engine.now


def test_slow_steps_are_warmed_up_and_timed_a_few_times_all_the_same(engine: SettlingEngine) -> None:
    engine.settled_seconds, engine.now = 7.0, 1000 + SETTLES_AFTER_SECONDS
    assert len(time_decode(engine, [[0, 1]], 64).seconds) == MIN_STEPS
    assert len(engine.stepped) - MIN_STEPS in (2, 3)  # one that was begun behind the last


@pytest.mark.parametrize("context", [1, 64, 100, 128])
def test_steps_start_again_at_the_context_before_they_need_more_pages(engine: SettlingEngine, context: int) -> None:
    count = pages(context + ROOM_TOKENS)
    time_decode(engine, [list(range(count)), list(range(count, 2 * count))], context)
    positions = [[span.position for span in spans] for spans in engine.stepped]
    assert positions == [[context + i % ROOM_TOKENS] * 2 for i in range(len(positions))]
    assert len(positions) > 2 * ROOM_TOKENS
    assert max(position for position, _ in positions) < count * PAGE_TOKENS


def test_all_steps_of_an_overlapping_engine_but_the_first_follow_the_one_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = OverlappingSettlingEngine()
    monkeypatch.setattr(measuring, "perf_counter", lambda: engine.now)
    time_decode(engine, [[0, 1]], 64)
    assert [span.follows for spans in engine.stepped for span in spans] == [False] + [True] * (len(engine.stepped) - 1)
    assert engine.under_way == 0


def test_the_room_of_a_case_is_one_page_more_than_its_context() -> None:
    assert shape_cases(is_profiled=False).longest == 32_768 + PAGE_TOKENS
