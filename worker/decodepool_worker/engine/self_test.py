"""What a GPU is held to as it starts, whatever its model: a row's bits do not depend on how many rows there are.

The programs for few rows and for many ask the tensor cores for the same sums in other ways. That these are one function
was tested on some models of GPU, and is tested here on the one at hand, with the weights that it will serve.
"""

from __future__ import annotations

from decodepool_kernels.cuda.errors import GpuFault

from decodepool_worker.engine.rows import PAGE_TOKENS, Engine, Span

TOKENS = 16
"""Of a prompt, each in a row. Less than a page, so that every plan has room."""
assert TOKENS <= PAGE_TOKENS


def require_same_bits(engine: Engine, name: str) -> None:
    """Evaluate a prompt one token a step, then as many copies side by side as there are rows for, doubling from one.

    GpuFault with the GPU's name where the logits after it differ by a bit. Writes to pages and slots from 0 on.
    """
    tokens = [position * 7919 % engine.vocabulary_size for position in range(TOKENS)]
    for position, token in enumerate(tokens):
        engine.step([Span([0], position, [token], 0)])
    alone = engine.logits(0).tobytes()
    most = min(engine.page_count, engine.max_step_rows // TOKENS)
    copies = 1
    while copies <= most:
        slots = [place if place < engine.slot_count else None for place in range(copies)]
        engine.step([Span([place], 0, tokens, slot) for place, slot in enumerate(slots)])
        differing = [slot for slot in slots if slot is not None and engine.logits(slot).tobytes() != alone]
        if differing:
            rows = copies * TOKENS
            raise GpuFault(f"{name}: a row has other bits among {rows} rows than alone, so it cannot be served exactly")
        copies *= 2
