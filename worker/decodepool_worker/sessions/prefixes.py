"""Which page already holds which prefix.

A page's digest covers its own tokens and, through its parent's digest, every token before them, so equal digests mean
equal prefixes and, by the exactness law, equal bytes of KV. BLAKE2b with 32 bytes: two different prefixes that
collide will not be found.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from decodepool_worker.engine.rows import PAGE_TOKENS

NO_PREFIX = b""
"""The parent of a session's first page."""


class CachedPage(NamedTuple):
    """A full page and the digest of every token up to its end."""

    digest: bytes
    page: int


def page_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Digest one full page of tokens after `parent`, the digest of the page before it."""
    return blake2b(parent + array("Q", tokens).tobytes(), digest_size=32).digest()


class PrefixIndex:
    """Digest to page, both ways. It holds no pages: the pool says when one is forgotten."""

    def __init__(self) -> None:
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._page_of)

    def add(self, digest: bytes, page: int) -> bool:
        """Register a full page. False if the prefix is known by another page, which then stays the known one."""
        if digest in self._page_of:
            return False
        self._page_of[digest] = page
        self._digest_of[page] = digest
        return True

    def forget(self, page: int) -> None:
        """Drop a page whose content is about to be overwritten."""
        del self._page_of[self._digest_of.pop(page)]

    def match(self, tokens: Sequence[int]) -> list[CachedPage]:
        """Return the longest run of known full pages, leaving at least one token: its logits must be computed."""
        return list(self._run(tokens))

    def _run(self, tokens: Sequence[int]) -> Iterator[CachedPage]:
        digest = NO_PREFIX
        for begin in range(0, (len(tokens) - 1) // PAGE_TOKENS * PAGE_TOKENS, PAGE_TOKENS):
            digest = page_digest(digest, tokens[begin : begin + PAGE_TOKENS])
            page = self._page_of.get(digest)
            if page is None:
                return
            yield CachedPage(digest, page)
