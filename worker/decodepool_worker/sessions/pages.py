"""Who holds which page of KV, and who has been promised how many.

Two rules, and their consequence:

1. the limits of all tables add up to at most `reserve_pages`, which is at most `page_count`;
2. a table never holds more pages than its limit.

So pages in use never exceed the promises, and `grow` always finds a page: a free one, or one that no table holds and
that is merely kept for reuse. A page that several tables share (a fork, a cached prefix) counts once in use, yet
every table has its whole promise, so copying a shared page can never fail either.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum


def pages_for(tokens: int, page_tokens: int) -> int:
    """Return how many pages hold `tokens` tokens."""
    return -(-tokens // page_tokens)


@dataclass(slots=True, eq=False)
class PageTable:
    """A promise of `limit` pages and those taken so far, in the order of the tokens they hold."""

    limit: int
    pages: list[int] = field(default_factory=list)


class PageUse(StrEnum):
    """What a page is doing."""

    FREE = "free"
    HELD = "held"
    SHARED = "shared"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Pages by use. `free + kept + used == total`; `used <= reserved <= reserve <= total`."""

    total: int
    reserve: int
    reserved: int
    used: int
    kept: int
    free: int


class PagePool:
    """Free list, reference counts and reservations. `on_evict` hears of each kept page whose content is given up."""

    def __init__(self, page_count: int, reserve_pages: int, on_evict: Callable[[int], None]) -> None:
        if not 0 < reserve_pages <= page_count:
            raise ValueError(f"reserve of {reserve_pages} pages does not fit into {page_count}")
        self._holders = [0] * page_count
        self._free = list(range(page_count - 1, -1, -1))
        self._worth_keeping: set[int] = set()
        self._kept: OrderedDict[int, None] = OrderedDict()  # no holder, content intact; least recently held first
        self._on_evict = on_evict
        self._reserve_pages = reserve_pages
        self._reserved_pages = 0

    def can_reserve(self, limit: int) -> bool:
        """Tell whether `limit` more pages can be promised."""
        return self._reserved_pages + limit <= self._reserve_pages

    def reserve(self, limit: int) -> PageTable:
        """Promise `limit` pages. Ask `can_reserve` first."""
        assert self.can_reserve(limit), "reserved beyond the reserve"
        self._reserved_pages += limit
        return PageTable(limit)

    def grow(self, table: PageTable) -> int:
        """Add a page of unspecified content to the table and return it. Never fails within the table's limit."""
        assert len(table.pages) < table.limit, "a table grew beyond its promise"
        page = self._free.pop() if self._free else self._evict()
        self._holders[page] = 1
        table.pages.append(page)
        return page

    def share(self, table: PageTable, page: int) -> None:
        """Add a page with content, held by another table or kept, to the table."""
        assert len(table.pages) < table.limit, "a table grew beyond its promise"
        assert self._holders[page] or page in self._kept, "shared a page without content"
        self._kept.pop(page, None)
        self._holders[page] += 1
        table.pages.append(page)

    def keep(self, page: int) -> None:
        """Mark a held page's content as worth keeping once nobody holds it."""
        assert self._holders[page], "kept a page that nobody holds"
        self._worth_keeping.add(page)

    def release(self, table: PageTable) -> None:
        """Take back the promise and every page, the last first: so a prefix is kept longer than what follows it."""
        while table.pages:
            self._drop(table.pages.pop())
        self._reserved_pages -= table.limit
        table.limit = 0

    def counts(self) -> PageCounts:
        """Count pages by use."""
        total, free, kept = len(self._holders), len(self._free), len(self._kept)
        return PageCounts(total, self._reserve_pages, self._reserved_pages, total - free - kept, kept, free)

    def uses(self) -> list[PageUse]:
        """Return the use of each page, in physical order: the memory map of the live page."""
        return [self._use(page) for page in range(len(self._holders))]

    def _use(self, page: int) -> PageUse:
        if self._holders[page]:
            return PageUse.SHARED if self._holders[page] > 1 else PageUse.HELD
        return PageUse.KEPT if page in self._kept else PageUse.FREE

    def _drop(self, page: int) -> None:
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if page in self._worth_keeping:
            self._kept[page] = None
        else:
            self._free.append(page)

    def _evict(self) -> int:
        page, _ = self._kept.popitem(last=False)
        self._worth_keeping.discard(page)
        self._on_evict(page)
        return page
