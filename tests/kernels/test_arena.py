"""Shared memory and barriers, against a checker that knows neither: it walks the operations byte by byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from decodepool_kernels.arena import Buffer, Placement, Uses, meetings, place
from hypothesis import example, given, settings
from hypothesis import strategies as st

Plan = Sequence[tuple[int, list[int], bool]]
"""An operation a line: bytes of its result, which earlier results it reads, whether it changes the last in place."""

PLANS = st.lists(
    st.tuples(st.integers(0, 1000), st.lists(st.integers(0, 40), max_size=3), st.booleans()), min_size=1, max_size=24
)
CHAIN: Plan = [(640, [0], False)] * 20
IN_PLACE: Plan = [(64, [], False)] + [(64, [index], True) for index in range(12)]
WIDE_AND_NARROW: Plan = [(1000 if index % 3 else 10, [index - 1, index - 2], False) for index in range(2, 22)]


def uses_of(plan: Plan) -> list[tuple[list[Buffer], list[Buffer]]]:
    """Every operation makes a buffer; those that read nothing yet made read none."""
    made: list[Buffer] = []
    uses: list[tuple[list[Buffer], list[Buffer]]] = []
    for size, picks, in_place in plan:
        reads = [made[-1 - pick] for pick in picks if pick < len(made)]
        writes = [Buffer(size)] if not (in_place and reads) else [reads[-1]]
        made.extend(buffer for buffer in writes if buffer not in made)
        uses.append((reads, writes))
    return uses


def touched(placement: Placement, buffer: Buffer) -> set[int]:
    """The 64-byte lines a buffer lies on; an empty one has a mark of its own, for it stands for memory elsewhere."""
    start = placement.offsets[buffer]
    return set(range(start // 64, -(-(start + buffer.size_bytes) // 64))) if buffer.size_bytes else {-id(buffer)}


def overwritten_while_needed(uses: Uses, placement: Placement) -> bool:
    """Tell whether some operation would read a line that another buffer's writer has used since."""
    owners: dict[int, Buffer] = {}
    for reads, writes in uses:
        if any(owners.get(line) is not buffer for buffer in reads for line in touched(placement, buffer)):
            return True
        owners.update({line: buffer for buffer in writes for line in touched(placement, buffer)})
    return False


def races(uses: Uses, placement: Placement, meets: Sequence[bool]) -> list[tuple[int, int]]:
    """Return pairs of operations between which no meeting lies although one writes a line that the other touches: two
    members may be at both at once.
    """
    found = []
    for second, (reads, writes) in enumerate(uses):
        for first in range(second):
            if any(meets[first + 1 : second + 1]):
                continue
            was_read, was_written = (lines(placement, part) for part in uses[first])
            now_read, now_written = lines(placement, reads), lines(placement, writes)
            if was_written & (now_read | now_written) or was_read & now_written:
                found.append((first, second))
    return found


def lines(placement: Placement, buffers: Sequence[Buffer]) -> set[int]:
    return set().union(*(touched(placement, buffer) for buffer in buffers))


@given(PLANS)
@example(CHAIN)
@example(IN_PLACE)
@example(WIDE_AND_NARROW)
@settings(deadline=None, max_examples=200)
def test_no_result_is_overwritten_while_somebody_needs_it(plan: Plan) -> None:
    uses = uses_of(plan)
    placement = place(uses)
    assert not overwritten_while_needed(uses, placement)
    assert all(placement.offsets[b] % 64 == 0 for _, writes in uses for b in writes)
    assert all(placement.offsets[b] + b.size_bytes <= placement.size_bytes for _, writes in uses for b in writes)


@given(PLANS)
@example(CHAIN)
@example(IN_PLACE)
@example(WIDE_AND_NARROW)
@settings(deadline=None, max_examples=200)
def test_the_team_meets_before_every_hazard(plan: Plan) -> None:
    uses = uses_of(plan)
    placement = place(uses)
    assert not races(uses, placement, meetings(uses, placement))


def test_memory_is_used_again() -> None:
    uses = uses_of(CHAIN)
    assert place(uses).size_bytes < sum(buffer.size_bytes for _, writes in uses for buffer in writes) / 2


def test_operations_that_share_nothing_do_not_wait_for_each_other() -> None:
    uses = uses_of([(64, [], False)] * 3 + [(64, [2], False), (64, [2], False), (64, [2], False)])
    assert meetings(uses, place(uses)) == [False, False, False, True, False, False]


@pytest.mark.parametrize("broken", [[False] * 20, [True] + [False] * 19], ids=["no meeting", "one too early"])
def test_the_checker_sees_what_is_missing(broken: list[bool]) -> None:
    uses = uses_of(CHAIN)
    assert races(uses, place(uses), broken)


def test_the_checker_sees_two_living_buffers_in_one_place() -> None:
    a, b = Buffer(64), Buffer(64)
    uses = [([], [a]), ([], [b]), ([a, b], [Buffer(64)])]
    assert overwritten_while_needed([*uses[:2], ([a, b], [])], Placement({a: 0, b: 0}, 64))
