"""Where a step's intermediate results lie: buffers whose lives do not overlap share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodepool_sizing.layouts import ALIGNMENT_BYTES, round_up


@dataclass(frozen=True, eq=False)
class Buffer:
    """A run of bytes to be placed."""

    size_bytes: int


Uses = Sequence[tuple[Sequence[Buffer], Sequence[Buffer]]]
"""What each operation reads and writes, in order."""


GRACE_OPERATIONS = 3
"""How long a dead buffer's bytes stay untouched: long enough that reuse hardly ever asks for a barrier of its own."""


@dataclass(frozen=True)
class Placement:
    """Where buffers begin within the arena, and the bytes needed in all."""

    offsets: dict[Buffer, int]
    size_bytes: int

    def overlap(self, a: Buffer, b: Buffer) -> bool:
        """Tell whether two buffers share a byte, or are one."""
        if a is b:
            return True
        first, second = self.offsets[a], self.offsets[b]
        return first < second + b.size_bytes and second < first + a.size_bytes


def place(uses: Uses) -> Placement:
    """Place every buffer first-fit among those that are alive."""
    ends = {buffer: index for index, (reads, writes) in enumerate(uses) for buffer in (*reads, *writes)}
    live: dict[Buffer, int] = {}
    offsets: dict[Buffer, int] = {}
    top = 0
    for index, (_, writes) in enumerate(uses):
        live = {buffer: offset for buffer, offset in live.items() if ends[buffer] + GRACE_OPERATIONS >= index}
        for buffer in writes:
            if buffer not in offsets:
                offsets[buffer] = live[buffer] = _first_fit(buffer.size_bytes, live)
                top = max(top, offsets[buffer] + buffer.size_bytes)
    return Placement(offsets, top)


def _first_fit(size_bytes: int, live: dict[Buffer, int]) -> int:
    offset = 0
    for buffer, start in sorted(live.items(), key=lambda item: item[1]):
        if offset + size_bytes <= start:
            break
        offset = max(offset, round_up(start + buffer.size_bytes, ALIGNMENT_BYTES))
    return offset
