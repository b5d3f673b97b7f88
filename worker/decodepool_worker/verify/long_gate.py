"""A stream past 512 tokens: attention folds pages in groups of that many, and a second group begins there."""

from __future__ import annotations

from decodepool_worker.engine.rows import PAGE_TOKENS, Span
from decodepool_worker.verify.lab import stream
from decodepool_worker.verify.witness import Witness

LONG_GATE = "past 512 tokens"
GROUP_TOKENS = 8 * PAGE_TOKENS
LENGTH = GROUP_TOKENS + 13
PAGES = LENGTH // PAGE_TOKENS + 1

LONG_CONTEXT_TOKENS = PAGES * PAGE_TOKENS
LONG_SESSIONS = 2
"""What an engine for this gate must hold."""

CHUNKS = (PAGE_TOKENS, 4 * PAGE_TOKENS)
"""Sizes of chunks up to the group's edge; what is beyond it comes in sevens."""


def past_a_group(witness: Witness) -> None:
    """Decode a stream alone, one token a step, past the group's edge; then prefill it in chunks, then in one row each.

    Logits are kept from before the edge on, and at each page's: those of every row would fill the memory.
    """
    tokens = stream(len(CHUNKS), LENGTH, witness.vocabulary_size)
    alone, other = list(range(PAGES)), list(range(PAGES, 2 * PAGES))
    for position in range(LENGTH):
        _step(witness, tokens, alone, position, 1)
    for size in CHUNKS:
        for begin in range(0, GROUP_TOKENS, size):
            _step(witness, tokens, other, begin, size)
        for begin in range(GROUP_TOKENS, LENGTH, 7):
            _step(witness, tokens, other, begin, 7)
        for position in range(GROUP_TOKENS - 3, LENGTH):
            _step(witness, tokens, other, position, 1)


def _step(witness: Witness, tokens: list[int], pages: list[int], begin: int, size: int) -> None:
    end = min(begin + size, LENGTH)
    is_kept = end > GROUP_TOKENS - 4 or end % PAGE_TOKENS == 0
    witness.step([Span(pages, begin, tokens[begin:end], 0 if is_kept else None)])
