"""What a GPU is held to as it starts, whatever its model: a row's bits do not depend on how many rows there are.

The programs for one row, for few and for many ask the tensor cores for the same sums in other ways. That these are one
function was tested on some models of GPU, and is tested here on the one at hand, with the weights that it will serve.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from decodepool_kernels.cuda.errors import GpuFault

from decodepool_worker.engine.rows import PAGE_TOKENS, Engine, Span

TOKENS = 16
"""Of a prompt, each in a row. Less than a page, so that every plan has room."""
assert TOKENS <= PAGE_TOKENS
FEW_ROWS = (2, 4, 8)
"""Of a step, for which there are programs of their own."""


def require_same_bits(engine: Engine, name: str) -> None:
    """Evaluate a prompt one token a step, then few tokens a step, then as many copies side by side as there are rows
    for, doubling from one.

    GpuFault with the GPU's name where the logits after it differ by a bit, or are all one number: a device that
    computes nothing is equal to itself. NaN is no number: a model may have it of its own. Writes to pages and slots
    from 0 on.
    """
    tokens = [position * 7919 % engine.vocabulary_size for position in range(TOKENS)]
    alone = _logits_after(engine, tokens, rows=1)
    if len(np.unique(np.frombuffer(alone, np.float32), equal_nan=False)) == 1 < engine.vocabulary_size:
        raise GpuFault(f"{name}: every logit is the same number, so it computes nothing")
    for rows in FEW_ROWS:
        if _logits_after(engine, tokens, rows) != alone:
            raise _depends_on_company(name, rows)
    most = min(engine.page_count, engine.max_step_rows // TOKENS)
    copies = 1
    while copies <= most:
        slots = [place if place < engine.slot_count else None for place in range(copies)]
        engine.step([Span([place], 0, tokens, slot) for place, slot in enumerate(slots)])
        if any(slot is not None and engine.logits(slot).tobytes() != alone for slot in slots):
            raise _depends_on_company(name, copies * TOKENS)
        copies *= 2


def _logits_after(engine: Engine, tokens: Sequence[int], rows: int) -> bytes:
    """Return the logits after a prompt that is evaluated in steps of `rows` tokens."""
    for first in range(0, len(tokens), rows):
        engine.step([Span([0], first, tokens[first : first + rows], 0)])
    return engine.logits(0).tobytes()


def _depends_on_company(name: str, rows: int) -> GpuFault:
    return GpuFault(f"{name}: a row has other bits among {rows} rows than alone, so it cannot be served exactly")
