"""Situations of rows in steps: company of every width, and prompts in chunks of every size."""

from __future__ import annotations

from itertools import pairwise

from decodepool_worker.engine.rows import PAGE_TOKENS, Span
from decodepool_worker.verify.lab import SESSIONS, STREAM_LENGTHS, Lab

STEPS = 3
"""Steps a row stays in company, so that it also reads keys and values that were written there."""

_EDGE = PAGE_TOKENS
STARTS = (
    (0, 2 * _EDGE), (1, _EDGE - 1), (0, _EDGE), (2, 5), (0, 2 * _EDGE - 1), (1, _EDGE), (0, 0), (2, 0), (0, _EDGE - 1),
    (2, 15), (0, _EDGE - 2), (1, 1), (0, 2 * _EDGE - 2), (1, 31), (0, 100), (0, 2 * _EDGE + 1), (1, _EDGE + 1),
)  # fmt: skip
"""(stream, position) of the rows in company: on both sides of every page's edge, and far from one."""


def company(lab: Lab, rows: int) -> None:
    """Steps of `rows` rows, each a session of its own at a place of its own, in another order each time."""
    lab.prefill()
    cast = [STARTS[(rows + i) % len(STARTS)] for i in range(rows)]
    for index, (stream, position) in enumerate(cast):
        _copy_pages(lab, stream, len(STREAM_LENGTHS) + index, position)
    for step in range(STEPS):
        spans = [_row(lab, index, stream, position + step) for index, (stream, position) in enumerate(cast)]
        turn = step * (rows // 2 + 1) % rows
        lab.witness.step(spans[turn:] + spans[:turn])


def chunks(lab: Lab, size: int) -> None:
    """Every stream in chunks of `size` tokens, side by side."""
    for begin in range(0, max(STREAM_LENGTHS), size):
        spans = [lab.span(i, i, begin, size) for i, length in enumerate(STREAM_LENGTHS) if begin < length]
        lab.witness.step(spans)


def whole_prompts(lab: Lab) -> None:
    """Every stream whole in one step; then again, cut where rows are to be compared, until each row was."""
    chunks(lab, max(STREAM_LENGTHS))
    turns = -(-sum(STREAM_LENGTHS) // (SESSIONS - len(STREAM_LENGTHS)))
    for turn in range(turns):
        spans: list[Span] = []
        slots = iter(range(SESSIONS))
        for stream, length in enumerate(STREAM_LENGTHS):
            edges = [0, *range(turn + 1, length, turns), length]
            spans += [lab.span(stream, stream, a, b - a, next(slots)) for a, b in pairwise(edges)]
        lab.witness.step(spans)


def chunks_beside_rows(lab: Lab) -> None:
    """Chunks of a long stream, with decode rows of others before and after them in the step."""
    lab.prefill()
    first, last, place = len(STREAM_LENGTHS), len(STREAM_LENGTHS) + 1, len(STREAM_LENGTHS) + 2
    for index, (stream, position) in ((0, (1, _EDGE - 2)), (1, (2, 8))):
        _copy_pages(lab, stream, len(STREAM_LENGTHS) + index, position)
    begin = 0
    for step, size in enumerate((5, _EDGE, _EDGE - 6, 3)):
        chunk = lab.span(0, place, begin, size, slot=2)
        before = lab.span(1, first, _EDGE - 2 + step, 1, slot=0)
        after = lab.span(2, last, 8 + step, 1, slot=1)
        lab.witness.step([before, chunk, after])
        begin += size


def _row(lab: Lab, index: int, stream: int, position: int) -> Span:
    return lab.span(stream, len(STREAM_LENGTHS) + index, position, 1, slot=index)


def _copy_pages(lab: Lab, stream: int, place: int, position: int) -> None:
    """Give a place the stream's pages up to that of `position`; what the last holds beyond is to be ignored."""
    pages = zip(lab.table(stream), lab.table(place), strict=True)
    for source, target in list(pages)[: position // PAGE_TOKENS + 1]:
        lab.witness.copy_page(source, target)
