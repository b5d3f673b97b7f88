from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
from decodepool_worker.sessions.scheduler import Need, deal_rows, plan_step
from decodepool_worker.sessions.session import Session, SessionState
from decodepool_worker.sessions.stepper import choose_work
from hypothesis import given
from hypothesis import strategies as st

NEEDS = st.lists(
    st.builds(Need, st.integers(0, 300), st.booleans()).filter(lambda n: n.pending or n.draws), max_size=20
)
D, D0 = Need(1, True), Need(0, True)


def prefill(pending: int) -> Need:
    return Need(pending, False)


@pytest.mark.parametrize(
    ("needs", "max_rows", "chunk", "rows"),
    [
        pytest.param([], 8, 4, [], id="nobody"),
        pytest.param([D, D, D], 8, 4, [1, 1, 1], id="every decode has its row"),
        pytest.param([D0], 8, 4, [0], id="a draw from resident logits takes no row"),
        pytest.param([prefill(300)], 256, 64, [256], id="a lone prefill has the whole step"),
        pytest.param([prefill(300), D], 256, 64, [64, 1], id="beside a decode, a chunk"),
        pytest.param([D, D, D, prefill(9)], 3, 64, [1, 1, None, 1], id="a full house leaves a row to prefill"),
        pytest.param([D, prefill(9)], 1, 64, [1, None], id="a single row: the decode waited longer"),
        pytest.param([prefill(9), D], 1, 64, [1, None], id="a single row: the prefill waited longer"),
        pytest.param(
            [prefill(200), prefill(10), D], 256, 128, [118, 10, 1], id="a short prompt is not behind a long one"
        ),
        pytest.param([prefill(200), prefill(200), D], 256, 64, [64, None, 1], id="a chunk goes to who waited longest"),
        pytest.param([Need(2, True), D], 256, 64, [2, 1], id="a decode that is behind is prefill"),
        pytest.param([D] * 5, 2, 64, [1, 1, None, None, None], id="more decodes than rows"),
    ],
)
def test_rows_are_shared_as_written(needs: list[Need], max_rows: int, chunk: int, rows: list[int | None]) -> None:
    assert plan_step(needs, max_rows, chunk) == rows


@given(NEEDS, st.integers(1, 300), st.integers(1, 300))
def test_a_step_holds_what_it_may_and_no_session_gets_more_than_it_wants(
    needs: list[Need], max_rows: int, chunk: int
) -> None:
    rows = plan_step(needs, max_rows, chunk)
    total = sum(count or 0 for count in rows)
    assert total <= max_rows
    assert all(count is None or count <= need.pending for need, count in zip(needs, rows, strict=True))
    assert any(count is not None for count in rows) or not needs
    prefill_rows = sum(count or 0 for need, count in zip(needs, rows, strict=True) if need.is_prefill)
    if any(need.draws and not need.is_prefill for need in needs):
        assert prefill_rows <= chunk
    if any(need.is_prefill for need in needs) and max_rows > 1:
        assert prefill_rows > 0


@given(NEEDS, st.integers(1, 40), st.integers(1, 40))
def test_nobody_starves(needs: list[Need], max_rows: int, chunk: int) -> None:
    """Whoever was served goes to the end of the queue; decodes never finish, and still everybody else does."""
    queue, waited = list(enumerate(needs)), dict.fromkeys(range(len(needs)), 0)
    for _ in range(len(needs) + 2):
        rows = plan_step([need for _, need in queue], max_rows, chunk)
        served = [item for item, count in zip(queue, rows, strict=True) if count is not None]
        for index, _ in queue:
            waited[index] += 1
        for index, _ in served:
            waited[index] = 0
        queue = [item for item in queue if item not in served] + served
        assert max(waited.values(), default=0) <= len(needs)


@given(st.lists(st.integers(1, 500), max_size=10), st.integers(0, 600))
def test_dealing_spends_the_budget_and_differs_by_a_page_at_most(pending: list[int], budget: int) -> None:
    dealt = deal_rows(pending, budget)
    assert sum(dealt) == min(budget, sum(pending))
    unmet = [rows for rows, wanted in zip(dealt, pending, strict=True) if rows < wanted]
    assert all(rows >= max(dealt, default=0) - 64 for rows in unmet)


@dataclass
class Waiting:
    """What choosing looks at of a session."""

    state: SessionState
    pending_count: int
    served_step: int
    id: str = ""


@given(
    st.lists(
        st.builds(
            Waiting,
            st.sampled_from([SessionState.DECODING, SessionState.DECODING, SessionState.PREFILLING, SessionState.IDLE]),
            st.integers(0, 3),
            st.integers(0, 5),
        ),
        max_size=12,
    ),
    st.integers(1, 14),
)
def test_who_is_chosen_is_as_planned_whether_or_not_anybody_has_to_wait(sessions: list[Waiting], rows: int) -> None:
    wanting = sorted((s for s in sessions if s.state is not SessionState.IDLE), key=lambda session: session.served_step)
    needs = [Need(session.pending_count, session.state is SessionState.DECODING) for session in wanting]
    planned = [(s, n) for s, n in zip(wanting, plan_step(needs, rows, 64), strict=True) if n is not None]
    chosen: list[Any] = list(choose_work(cast(list[Session], sessions), rows, 64))
    assert chosen == planned
