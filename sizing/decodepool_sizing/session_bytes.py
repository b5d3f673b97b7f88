"""What one session costs, from a model's shape alone."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from decodepool_sizing.kv import PAGE_TOKENS, KVType, pages
from decodepool_sizing.layers import CacheRows
from decodepool_sizing.shape import ModelShape

PAGE_ENTRY_BYTES = 4
LOGIT_BYTES = 4


def session_bytes(shape: ModelShape, context_tokens: int, kv_type: KVType) -> int:
    """Return the bytes reserved for one session: rows of every layer, recurrent state, page table, resident logits."""
    rows = sum(_reserved_rows(kind, context_tokens) * kind.row_bytes(kv_type) for kind in shape.cache_rows)
    table = PAGE_ENTRY_BYTES * pages(context_tokens)
    return rows + shape.fixed_state_bytes + table + LOGIT_BYTES * shape.vocabulary_size


def growing_bytes_per_token(shape: ModelShape, kv_type: KVType) -> int:
    """Return the bytes that one more token adds, windows aside; rounded up where rows span tokens."""
    growing = [kind for kind in shape.cache_rows if kind.window is None]
    return ceil(sum((Fraction(kind.row_bytes(kv_type), kind.tokens_per_row) for kind in growing), Fraction(0)))


def window_bytes(shape: ModelShape, kv_type: KVType) -> int:
    """Return the bytes of full windows: the rows that are in sight, without the page that reserving adds."""
    return sum(kind.window * kind.row_bytes(kv_type) for kind in shape.cache_rows if kind.window is not None)


def page_bytes(shape: ModelShape, kv_type: KVType) -> int:
    """Return the bytes of one page through all the layers that keep every token; 0 where there is none."""
    growing = [kind for kind in shape.cache_rows if kind.window is None]
    return sum(ceil(Fraction(PAGE_TOKENS, kind.tokens_per_row)) * kind.row_bytes(kv_type) for kind in growing)


def kv_types(shape: ModelShape) -> tuple[KVType, ...]:
    """Return the types that this shape's rows can be kept in."""
    return tuple(kind for kind in KVType if all(kind.can_hold(rows.length) for rows in shape.cache_rows))


def _reserved_rows(kind: CacheRows, context_tokens: int) -> int:
    """Whole pages. A window that does not begin on a page boundary touches one page more, though never more than the
    context has.
    """
    reserved = pages(context_tokens)
    if kind.window is not None:
        reserved = min(reserved, pages(min(context_tokens, kind.window)) + 1)
    return ceil(Fraction(reserved * PAGE_TOKENS, kind.tokens_per_row))
