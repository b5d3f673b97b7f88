from __future__ import annotations

import pytest
from decodepool_worker.sessions.pages import PagePool, PageTable, PageUse, pages_for
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule


class Allocator(RuleBasedStateMachine):
    """Any order of promises, growth, sharing and release keeps every promise."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pool = PagePool(12, 9, self.evicted.append)
        self.live: list[PageTable] = []
        self.known: set[int] = set()

    @rule(target=tables, limit=st.integers(1, 5))
    def reserve(self, limit: int) -> PageTable:
        fits = sum(table.limit for table in self.live) + limit <= 9
        assert self.pool.can_reserve(limit) == fits
        table = self.pool.reserve(limit) if fits else PageTable(0)
        self.live.append(table)
        return table

    @precondition(lambda self: any(len(table.pages) < table.limit for table in self.live))
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from([t for t in self.live if len(t.pages) < t.limit]))
        held = {page for other in self.live for page in other.pages}
        page = self.pool.grow(table)
        assert page not in held, "a page in use was given away"
        assert page not in self.known or self.evicted[-1] == page, "kept content vanished without a word"
        self.known.discard(page)

    @rule(source=tables, table=tables)
    def share(self, source: PageTable, table: PageTable) -> None:
        room = [page for page in source.pages if page not in table.pages]
        if room and len(table.pages) < table.limit:
            self.pool.share(table, room[0])

    @rule(table=tables)
    def reuse(self, table: PageTable) -> None:
        held = {page for other in self.live for page in other.pages}
        kept = sorted(self.known - held)
        if kept and len(table.pages) < table.limit:
            self.pool.share(table, kept[0])

    @rule(table=tables)
    def keep(self, table: PageTable) -> None:
        for page in table.pages[:1]:
            self.pool.keep(page)
            self.known.add(page)

    @rule(table=consumes(tables))
    def release(self, table: PageTable) -> None:
        self.live.remove(table)
        self.pool.release(table)

    @invariant()
    def every_page_has_one_use_and_every_promise_is_covered(self) -> None:
        counts, held = self.pool.counts(), {page for table in self.live for page in table.pages}
        assert counts.free + counts.kept + counts.used == counts.total == 12
        assert counts.used == len(held) <= counts.reserved == sum(table.limit for table in self.live) <= counts.reserve
        assert counts.kept == len(self.known - held)
        uses = self.pool.uses()
        assert {page for page, use in enumerate(uses) if use in {PageUse.HELD, PageUse.SHARED}} == held

    def teardown(self) -> None:
        for table in self.live:
            self.pool.release(table)
        counts = self.pool.counts()
        assert (counts.used, counts.reserved) == (0, 0)


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_kept_pages_are_given_up_oldest_first_and_the_tail_before_the_head() -> None:
    evicted: list[int] = []
    pool = PagePool(4, 4, evicted.append)
    first, second = pool.reserve(2), pool.reserve(2)
    kept = [pool.grow(first), pool.grow(first), pool.grow(second), pool.grow(second)]
    for page in kept:
        pool.keep(page)
    pool.release(first)
    pool.release(second)
    third = pool.reserve(4)
    assert [pool.grow(third) for _ in range(4)] == evicted == [kept[1], kept[0], kept[3], kept[2]]


@pytest.mark.parametrize(("tokens", "pages"), [(1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_a_context_takes_whole_pages(tokens: int, pages: int) -> None:
    assert pages_for(tokens, 64) == pages


@pytest.mark.parametrize("reserve", [0, -1, 5])
def test_a_reserve_that_does_not_fit_is_refused(reserve: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        PagePool(4, reserve, lambda page: None)
