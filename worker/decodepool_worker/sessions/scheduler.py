"""Which rows go into one step. Pure: needs in, rows out.

Every decode gets its row in every step. Prefill shares what is left, dealt out a page at a time to whoever waited
longest, so a short prompt never waits for a long one to end. While anybody decodes, at most `prefill_chunk_rows` of a
step are prefill: that bounds the time between two tokens. And one row is left to prefill, so a full house of decodes
does not starve it (in steps of a single row they take turns). When decodes outnumber the rows they take turns too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodepool_worker.engine.rows import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Need:
    """A session that wants rows: `pending` tokens to evaluate, and, if it `draws`, a token after the last of them."""

    pending: int
    draws: bool

    @property
    def is_prefill(self) -> bool:
        """Whether it is behind by more than the one row of a decode."""
        return self.pending > (1 if self.draws else 0)


def plan_step(needs: Sequence[Need], max_step_rows: int, prefill_chunk_rows: int) -> list[int | None]:
    """Return the rows of each need in this step, None for none; 0 rows is a draw from resident logits.

    `needs` come with the one served longest ago first; that order is who goes first where rows are short.
    """
    prefills = [index for index, need in enumerate(needs) if need.is_prefill]
    decodes = [index for index, need in enumerate(needs) if need.draws and not need.is_prefill]
    rows: list[int | None] = [None] * len(needs)
    left = max_step_rows - (1 if prefills and (max_step_rows > 1 or prefills[0] == 0) else 0)
    for index in decodes:
        if needs[index].pending <= left:
            rows[index] = needs[index].pending
            left -= needs[index].pending
    unused = max_step_rows - sum(count or 0 for count in rows)
    budget = min(unused, prefill_chunk_rows) if decodes else unused
    for index, count in zip(prefills, deal_rows([needs[index].pending for index in prefills], budget), strict=True):
        rows[index] = count or None
    return rows


def deal_rows(pending: Sequence[int], budget: int) -> list[int]:
    """Deal `budget` rows in rounds of at most a page each, in the given order, none beyond what is pending."""
    dealt = [0] * len(pending)
    waiting = list(range(len(pending)))
    while waiting and budget:
        for index in waiting:
            grant = min(PAGE_TOKENS, pending[index] - dealt[index], budget)
            dealt[index] += grant
            budget -= grant
        waiting = [index for index in waiting if dealt[index] < pending[index]]
    return dealt
