"""The place a session has in the engine: its pages, its row of resident logits, and the prefixes they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from decodepool_worker.engine.rows import PAGE_TOKENS, Engine
from decodepool_worker.sessions.pages import PageCounts, PagePool, PageTable, PageUse, pages_for
from decodepool_worker.sessions.prefixes import NO_PREFIX, PrefixIndex, page_digest


@dataclass(slots=True, eq=False)
class Place:
    """What one session holds. `digests[i]` is that of page i, for each page whose every token has been evaluated."""

    slot: int
    table: PageTable
    digests: list[bytes] = field(default_factory=list)


class SessionMemory:
    """Admits sessions to pages and logits rows by reservation, and keeps full pages of the past for reuse."""

    def __init__(self, engine: Engine, slots: int, reserve_pages: int) -> None:
        if not 0 < slots <= engine.slot_count:
            raise ValueError(f"{slots} sessions need {slots} logits rows, the engine has {engine.slot_count}")
        self._engine = engine
        self._free_slots = list(range(slots - 1, -1, -1))
        self._prefixes = PrefixIndex()
        self._pool = PagePool(engine.page_count, reserve_pages, self._prefixes.forget)

    def can_admit(self, context_tokens: int, count: int = 1) -> bool:
        """Tell whether `count` sessions of this context have a row and a whole reservation."""
        pages = count * pages_for(context_tokens, PAGE_TOKENS)
        return len(self._free_slots) >= count and self._pool.can_reserve(pages)

    def admit(self, context_tokens: int) -> Place:
        """Reserve a session's whole context. Ask `can_admit` first."""
        return Place(self._free_slots.pop(), self._pool.reserve(pages_for(context_tokens, PAGE_TOKENS)))

    def reuse(self, place: Place, tokens: Sequence[int]) -> int:
        """Give an empty place the pages already known for a prefix of `tokens`; return how many tokens they hold."""
        for digest, page in self._prefixes.match(tokens):
            self._pool.share(place.table, page)
            place.digests.append(digest)
        return len(place.digests) * PAGE_TOKENS

    def cover(self, place: Place, length: int) -> None:
        """Grow the place to hold `length` tokens."""
        if length <= PAGE_TOKENS * len(place.table.pages):
            return
        for _ in range(len(place.table.pages), pages_for(length, PAGE_TOKENS)):
            self._pool.grow(place.table)

    def register(self, place: Place, tokens: Sequence[int], evaluated_count: int) -> None:
        """Make every page that evaluation has filled known to later sessions."""
        if evaluated_count // PAGE_TOKENS == len(place.digests):
            return
        filled = range(len(place.digests) * PAGE_TOKENS, evaluated_count + 1, PAGE_TOKENS)
        for begin, end in pairwise(filled):
            parent = place.digests[-1] if place.digests else NO_PREFIX
            digest = page_digest(parent, tokens[begin:end])
            page = place.table.pages[len(place.digests)]
            if self._prefixes.add(digest, page):
                self._pool.keep(page)
            place.digests.append(digest)

    def fork(self, source: Place, target: Place, evaluated_count: int, *, with_logits: bool) -> None:
        """Give an empty place the first evaluated tokens of another: full pages shared, a part-filled one copied."""
        full = evaluated_count // PAGE_TOKENS
        for page in source.table.pages[:full]:
            self._pool.share(target.table, page)
        target.digests.extend(source.digests[:full])
        if evaluated_count % PAGE_TOKENS:
            self._engine.copy_page(source.table.pages[full], self._pool.grow(target.table))
        if with_logits:
            self._engine.copy_logits(source.slot, target.slot)

    def release(self, place: Place) -> None:
        """Take everything back. Known full pages stay for reuse until their room is needed."""
        self._pool.release(place.table)
        self._free_slots.append(place.slot)

    def counts(self) -> PageCounts:
        """Count pages by use."""
        return self._pool.counts()

    def page_uses(self) -> list[PageUse]:
        """Return the use of each page, in physical order."""
        return self._pool.uses()
