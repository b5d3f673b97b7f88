"""An engine that watches another: equal tokens must give equal bytes of logits, whatever happened around them.

It follows which token every page holds, through steps and copies, so it can tell what each row's whole prefix is. The
first row seen for a prefix is the reference; `Lab` sees to it that those of its streams are computed alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decodepool_worker.engine.rows import PAGE_TOKENS, Engine, NonFiniteLogits, Outcome, Span

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Tally:
    """What was compared: rows and their bytes."""

    rows: int = 0
    bytes: int = 0

    def plus(self, rows: int, count: int) -> Tally:
        """Return the tally with more compared."""
        return Tally(self.rows + rows, self.bytes + count)

    def since(self, before: Tally) -> Tally:
        """Return what was compared since."""
        return Tally(self.rows - before.rows, self.bytes - before.bytes)


class Memory:
    """The logits first seen for each prefix. Shared by the witnesses of engines that must agree."""

    def __init__(self) -> None:
        self._known: dict[bytes, Logits] = {}

    def recall(self, tokens: Sequence[int]) -> Logits | None:
        """Return the reference for a prefix, None if it is new."""
        return self._known.get(array("I", tokens).tobytes())

    def learn(self, tokens: Sequence[int], logits: Logits) -> None:
        """Make a copy of these logits the reference for a prefix."""
        self._known[array("I", tokens).tobytes()] = logits.copy()


class Witness:
    """An `Engine` in front of another. `difference` is the first one it saw, None while all is equal.

    A difference is kept and not raised: a residence would take the exception for the engine's end.
    """

    def __init__(self, engine: Engine, memory: Memory | None = None) -> None:
        self.page_count = engine.page_count
        self.slot_count = engine.slot_count
        self.max_step_rows = engine.max_step_rows
        self.vocabulary_size = engine.vocabulary_size
        self.memory = Memory() if memory is None else memory
        self.tally = Tally()
        self.difference: str | None = None
        self._engine = engine
        self._written: dict[int, list[int]] = {}
        self._doomed: set[int] = set()

    def doom(self, slot: int) -> None:
        """Have the next draw from a slot end as if its logits were not finite."""
        self._doomed.add(slot)

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        """Step the engine, then compare every row that kept its logits."""
        outcomes = self._engine.step(spans)
        for span in spans:
            self._write(span)
        row, rows = -1, sum(len(span.tokens) for span in spans)
        for span in spans:
            row += len(span.tokens)
            if span.slot is not None:
                place = f"row {row} of {rows}" if span.tokens else "resident logits"
                self.compare(self._prefix(span), self._engine.logits(span.slot), place)
        return [self._outcome(span, outcome) for span, outcome in zip(spans, outcomes, strict=True)]

    def compare(self, tokens: Sequence[int], logits: Logits, place: str) -> None:
        """Compare a row with the reference for its tokens, or make it the reference."""
        reference = self.memory.recall(tokens)
        if reference is None:
            self.memory.learn(tokens, logits)
            return
        self.tally = self.tally.plus(1, reference.nbytes)
        if self.difference is None:
            self.difference = _difference(reference, logits, f"{place}, after {len(tokens)} tokens")

    def compare_tokens(self, reference: Sequence[int], tokens: Sequence[int], place: str) -> None:
        """Compare drawn tokens with the reference for them."""
        self.tally = self.tally.plus(len(reference), 4 * len(reference))
        if self.difference is None and list(reference) != list(tokens):
            pairs = zip(reference, tokens, strict=False)
            index = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(reference), len(tokens)))
            drawn = [str(row[index]) if index < len(row) else "nothing" for row in (tokens, reference)]
            self.difference = f"{place}: drawn token {index} is {drawn[0]}, not {drawn[1]}"

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page of every layer."""
        self._engine.copy_page(source, target)
        self._written[target] = list(self._page(source))

    def logits(self, slot: int) -> Logits:
        """Return the resident logits of a slot."""
        return self._engine.logits(slot)

    def copy_logits(self, source: int, target: int) -> None:
        """Copy one resident logits row."""
        self._engine.copy_logits(source, target)

    def close(self) -> None:
        """Leave the engine to its owner."""

    def _page(self, page: int) -> list[int]:
        return self._written.setdefault(page, [0] * PAGE_TOKENS)

    def _write(self, span: Span) -> None:
        for position, token in enumerate(span.tokens, span.position):
            self._page(span.pages[position // PAGE_TOKENS])[position % PAGE_TOKENS] = token

    def _prefix(self, span: Span) -> list[int]:
        length = span.position + len(span.tokens)
        pages = span.pages[: -(-length // PAGE_TOKENS)]
        return [token for page in pages for token in self._page(page)][:length]

    def _outcome(self, span: Span, outcome: Outcome) -> Outcome:
        if span.draw is None or span.slot not in self._doomed:
            return outcome
        self._doomed.discard(span.slot)
        return NonFiniteLogits("doomed by a gate")


def _difference(reference: Logits, logits: Logits, place: str) -> str | None:
    """Say which element is the first to differ in any bit; None if none does."""
    if reference.shape != logits.shape:
        return f"{place}: {logits.shape} logits, not {reference.shape}"
    different = np.flatnonzero(reference.view(np.uint32) != np.ascontiguousarray(logits).view(np.uint32))
    if not different.size:
        return None
    first = int(different[0])
    ours, theirs = (_with_bits(row, first) for row in (logits, reference))
    return f"{place}: logit {first} is {ours}, not {theirs}; {different.size} of {logits.size} differ"


def _with_bits(logits: Logits, index: int) -> str:
    bits = int(np.ascontiguousarray(logits).view(np.uint32)[index])
    return f"{logits[index]!s} (0x{bits:08x})"
