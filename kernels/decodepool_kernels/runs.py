"""What a step runs over, for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class RowRun(Protocol):
    """Consecutive rows of one session: its page table, the first row's position, and the slot that keeps the last row's
    logits.
    """

    @property
    def pages(self) -> Sequence[int]:
        """Physical page of tokens [64 i, 64 i + 64)."""

    @property
    def position(self) -> int:
        """Absolute position of the first token."""

    @property
    def tokens(self) -> Sequence[int]:
        """The rows' tokens; none for a run that evaluates nothing."""

    @property
    def slot(self) -> int | None:
        """Resident logits row, None where no logits are wanted."""


@dataclass(frozen=True)
class OneRow:
    """The smallest run; where `follows`, its token is the last that its slot drew."""

    pages: Sequence[int]
    position: int
    tokens: Sequence[int]
    slot: int | None
    follows: bool = False
