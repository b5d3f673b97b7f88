"""What a step brings to the device, and that bringing what changed leaves it with all of it. No GPU needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from decodepool_kernels.cuda.inputs import (
    HEADER_WORDS,
    LONGEST_UNITS,
    MAX_ROWS,
    ROW_ARRAYS,
    UNIT_WORDS,
    UNITS_AT,
    AttentionCut,
    StepInputs,
    StepLimits,
)
from numpy.typing import NDArray

LIMITS = StepLimits(rows=64, slots=32, pages=500, table_width=40, vocabulary_size=1000)
CUT = AttentionCut(4, 2, 264, 64, 132)


@dataclass(frozen=True)
class Run:
    """Rows of one session."""

    pages: Sequence[int]
    position: int
    tokens: Sequence[int]
    slot: int | None = None
    follows: bool = False


def zeros(count: int) -> NDArray[np.int32]:
    return np.zeros(count, np.int32)


def told(words: NDArray[np.int32], runs: Sequence[Run]) -> dict[str, list[object]]:
    """Read a step as the device does."""
    rows, wanted, units, units_at, tables_at, width, wide = words[:7].tolist()
    arrays = words[HEADER_WORDS : HEADER_WORDS + ROW_ARRAYS * MAX_ROWS].reshape(ROW_ARRAYS, MAX_ROWS)
    pages = [-(-(run.position + len(run.tokens)) // 64) for run in runs]
    return {
        "rows": arrays[:5, :rows].tolist(),
        "wanted": arrays[5:, :wanted].tolist(),
        "units": words[units_at : units_at + (units + wide) * UNIT_WORDS].tolist(),
        "longest": [int(words[LONGEST_UNITS])],
        "tables": [words[tables_at + i * width :][:n].tolist() for i, n in enumerate(pages)],
    }


def steps(seed: int) -> list[list[Run]]:
    """Sessions that decode, come, go, are prefilled, and share a step in changing order."""
    random = np.random.default_rng(seed)
    live: list[Run] = []
    found = []
    for _ in range(60):
        if len(live) < 12 and random.random() < 0.4:
            pages = random.choice(LIMITS.pages, LIMITS.table_width, replace=False).tolist()
            live.append(Run(pages, int(random.integers(0, 2400)), [1], slot=len(live)))
        if live and random.random() < 0.2:
            live.pop(int(random.integers(len(live))))
        if random.random() < 0.3:
            live = [live[i] for i in random.permutation(len(live))]
        counts = [1 if random.random() < 0.9 else int(random.integers(1, 5)) for _ in live]
        if live:
            found.append([replace(run, tokens=[7] * count) for run, count in zip(live, counts, strict=True)])
        live = [replace(run, position=run.position + count) for run, count in zip(live, counts, strict=True)]
        live = [run for run in live if run.position + 5 < 64 * LIMITS.table_width]
    return found


@pytest.mark.parametrize("seed", range(6))
def test_bringing_what_changed_leaves_the_device_with_the_whole_step(seed: int) -> None:
    inputs = StepInputs(zeros, LIMITS, CUT)
    device = np.full(inputs.words.size, -77, np.int32)
    for runs in steps(seed):
        for part in inputs.place(runs):
            device[part.start : part.stop] = inputs.words[part.start : part.stop]
        alone = StepInputs(zeros, LIMITS, CUT)
        alone.place(runs)
        assert told(device, runs) == told(alone.words, runs)


def test_a_token_more_of_each_session_brings_no_table_and_cuts_nothing_anew() -> None:
    inputs = StepInputs(zeros, LIMITS, CUT)
    runs = [Run(list(range(i * 20, i * 20 + 20)), 1000 + i, [i], slot=i) for i in range(8)]
    assert len(inputs.place(runs)) == 2
    (part,) = inputs.place([replace(run, position=run.position + 1) for run in runs])
    assert part.stop <= inputs.words[4], "the tables begin there"
    crossing = [replace(run, position=1024) if i == 3 else run for i, run in enumerate(runs)]
    assert [len(part) for part in inputs.place(crossing)][1] == LIMITS.table_width


def test_a_row_that_follows_names_its_slot_where_its_token_would_be() -> None:
    inputs = StepInputs(zeros, LIMITS, CUT)
    inputs.place(
        [Run([0], 3, [7], 5), Run([1], 4, [7], 6, follows=True), Run([2], 5, [7, 8]), Run([3], 1, [7], 0, True)]
    )
    assert inputs.words[HEADER_WORDS:][:5].tolist() == [7, -7, 7, 8, -1]


REFUSED = {
    "a page past the last": (Run([500], 0, [1]), "page"),
    "a page before the first": (Run([-1], 0, [1]), "page"),
    "too few pages": (Run([0], 64, [1]), "page"),
    "too few pages, which are those known": (Run([3, 4, 5], 200, [1]), "page"),
    "more pages than a table holds": (Run(list(range(41)), 40 * 64, [1]), "page"),
    "a slot past the last": (Run([0], 0, [1], 32), "slot"),
    "a slot before the first": (Run([0], 0, [1], -1), "slot"),
    "a token past the last": (Run([0], 0, [1000]), "vocabulary"),
    "a token before the first": (Run([0], 0, [-1]), "vocabulary"),
    "two rows that follow one token": (Run([0], 0, [1, 1], 0, follows=True), "2 rows of slot 0 follow"),
    "a row that follows no slot": (Run([0], 0, [1], follows=True), "slot None follow"),
    "a row that follows a slot past the last": (Run([0], 0, [1], 32, follows=True), "slot 32 of 32"),
    "too many rows": (Run([0, 1], 0, [1] * 65), "rows; it holds 64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_refused_and_the_next_step_is_whole(name: str) -> None:
    inputs, (bad, fault) = StepInputs(zeros, LIMITS, CUT), REFUSED[name]
    device = np.full(inputs.words.size, -77, np.int32)
    good = [Run([3, 4, 5], 130, [1], 0), Run([6, 7], 70, [2], 1)]
    for runs in (good, [bad, good[1]], [good[1], bad], [good[1], good[0]]):
        if bad in runs:
            with pytest.raises(ValueError, match=fault):
                inputs.place(runs)
            continue
        for part in inputs.place(runs):
            device[part.start : part.stop] = inputs.words[part.start : part.stop]
        alone = StepInputs(zeros, LIMITS, CUT)
        alone.place(runs)
        assert told(device, runs) == told(alone.words, runs)


@pytest.mark.parametrize(
    ("runs", "narrow", "wide"),
    [
        pytest.param([(1, 100), (1, 7)], True, False, id="rows of sessions that decode"),
        pytest.param([(8, 0)], True, False, id="a run that is cut into chunks"),
        pytest.param([(9, 0), (30, 64)], False, True, id="long runs alone"),
        pytest.param([(30, 64), (1, 7)], True, True, id="a long run beside a session that decodes"),
    ],
)
def test_a_step_tells_which_programs_of_attention_it_needs(
    runs: Sequence[tuple[int, int]], narrow: bool, wide: bool
) -> None:
    inputs = StepInputs(zeros, LIMITS, CUT)
    inputs.place([Run(range(40), position, range(count)) for count, position in runs])
    assert (inputs.kind.narrow, inputs.kind.wide) == (narrow, wide)


@pytest.mark.parametrize(
    ("runs", "crowded"),
    [
        pytest.param([(1, 100)], False, id="single blocks that all run at once"),
        pytest.param([(1, 600)] * 4, True, id="more than run at once"),
        pytest.param([(1, 600)] * 5, False, id="of more rows"),
        pytest.param([(1, 2100)] * 4, False, id="groups"),
    ],
)
def test_a_step_tells_whether_few_rows_have_more_single_blocks_than_run_at_once(
    runs: Sequence[tuple[int, int]], crowded: bool
) -> None:
    inputs = StepInputs(zeros, LIMITS, replace(CUT, blocks_at_once=64))
    inputs.place([Run(range(40), position, range(count)) for count, position in runs])
    assert inputs.kind.crowded == crowded


@pytest.mark.parametrize(
    ("runs", "at_once", "shared"),
    [
        pytest.param([(1, 1030)], 4, True, id="two groups and a page of two kv heads"),
        pytest.param([(1, 1030)], 3, False, id="one more than run at once"),
        pytest.param([(1, 1030)], 0, False, id="no program for them"),
        pytest.param([(1, 60)], 4, False, id="no whole group"),
        pytest.param([(1, 520)] * 8, 16, True, id="a group each of many rows"),
        pytest.param([(1, 520)] * 9, 32, False, id="of more rows"),
        pytest.param([(8, 520)], 8, True, id="a run of some rows, two a unit"),
        pytest.param([(1, 1030), (9, 60)], 4, False, id="beside a long run"),
    ],
)
def test_a_step_tells_whether_an_sm_gets_no_more_than_a_group_to_be_shared_by_teams(
    runs: Sequence[tuple[int, int]], at_once: int, shared: bool
) -> None:
    inputs = StepInputs(zeros, LIMITS, replace(CUT, blocks_at_once=0, shared_at_once=at_once))
    inputs.place([Run(range(40), position, range(count)) for count, position in runs])
    assert inputs.kind.shared == shared


def test_units_lie_longest_first_and_those_no_other_is_longer_than_are_counted() -> None:
    inputs = StepInputs(zeros, LIMITS, replace(CUT, blocks_at_once=0))
    inputs.place([Run(range(40), position, [1]) for position in (60, 1030, 511, 700)])
    units = inputs.words[UNITS_AT:][: 7 * UNIT_WORDS].reshape(7, UNIT_WORDS)
    assert units[:, 3].tolist() == [8, 8, 8, 8, 3, 1, 1]
    assert inputs.words[LONGEST_UNITS] == 4


def test_single_blocks_are_not_shared() -> None:
    inputs = StepInputs(zeros, LIMITS, replace(CUT, shared_at_once=132))
    inputs.place([Run(range(40), 1030, [1])])
    assert not inputs.kind.shared
