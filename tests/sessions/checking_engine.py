"""An engine that checks what sessions promise to it, and gives away whoever broke the promise.

Its pages hold the tokens themselves and its logits are a hash of all of them, found through the page table it is
given. So a wrong page, a stale one, a forgotten copy or a wrong position gives other tokens than `lone_tokens`, which
knows no pages at all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from decodepool_worker.engine.rows import PAGE_TOKENS, Draw, Outcome, Sampled, Sampling, Span
from decodepool_worker.engine.sampling import draw_token
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.events import EndEvent, TokenEvent
from decodepool_worker.sessions.residence import Residence
from numpy.typing import NDArray

VOCABULARY = 97
NAN_TOKEN = 96
"""From this token on, a session's logits are not finite."""

GREEDY = Sampling(temperature=0.0)
SAMPLED = Sampling(temperature=0.8, top_k=40, repetition_penalty=1.1)

_UNWRITTEN = -1
_MIXERS = np.random.default_rng(7).integers(1, 2**63, VOCABULARY, dtype=np.uint64) | np.uint64(1)


def logits_after(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """The model: logits are a hash of every token. `NAN_TOKEN` is never drawn, only given."""
    if NAN_TOKEN in tokens:
        return np.full(VOCABULARY, np.nan, np.float32)
    mixed = (_MIXERS * np.uint64(zlib.crc32(tokens.tobytes()) + 1)) >> np.uint64(48)
    logits = (mixed / 8192.0).astype(np.float32)
    logits[NAN_TOKEN] = -1e9
    return logits


def lone_tokens(
    tokens: Sequence[int],
    count: int,
    *,
    seed: int = 0,
    sampling: Sampling = GREEDY,
    stops: frozenset[int] = frozenset(),
) -> list[int]:
    """Return what a lone session draws after `tokens`."""
    known = list(tokens)
    while len(known) < len(tokens) + count:
        drawn = draw_token(logits_after(np.array(known, np.int64)), Draw(sampling, seed, len(known), known))
        assert isinstance(drawn, Sampled)
        known.append(drawn.token)
        if drawn.token in stops:
            break
    return known[len(tokens) :]


class CheckingEngine:
    """See the module. `broken` makes the next step raise."""

    def __init__(self, page_count: int, slot_count: int, max_step_rows: int = 256) -> None:
        self.page_count = page_count
        self.slot_count = slot_count
        self.max_step_rows = max_step_rows
        self.vocabulary_size = VOCABULARY
        self.broken = False
        self.steps: list[list[tuple[int, int]]] = []  # position and rows of each span
        self.logits_kept = 0
        self._pages = np.full((page_count, PAGE_TOKENS), _UNWRITTEN, np.int64)
        self._logits = np.full((slot_count, VOCABULARY), np.nan, np.float32)

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        if self.broken:
            raise RuntimeError("illegal memory access")
        self._check(spans)
        self.logits_kept += sum(bool(span.tokens) and span.slot is not None for span in spans)
        self.steps.append([(span.position, len(span.tokens)) for span in spans])
        for span in spans:
            for offset, token in enumerate(span.tokens, start=span.position):
                self._pages[span.pages[offset // PAGE_TOKENS], offset % PAGE_TOKENS] = token
        return [self._outcome(span) for span in spans]

    def copy_page(self, source: int, target: int) -> None:
        self._pages[target] = self._pages[source]

    def logits(self, slot: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._logits[slot]
        return row

    def copy_logits(self, source: int, target: int) -> None:
        self._logits[target] = self._logits[source]

    def close(self) -> None:
        self.broken = True

    def _check(self, spans: Sequence[Span]) -> None:
        assert 0 < sum(len(span.tokens) for span in spans) <= self.max_step_rows or all(span.draw for span in spans)
        slots = [span.slot for span in spans if span.slot is not None]
        assert len(slots) == len(set(slots)), "two spans keep logits in one row"
        tables = [set(span.pages) for span in spans]
        for index, span in enumerate(spans):
            assert len(tables[index]) == len(span.pages), "a page twice in one table"
            end = span.position + len(span.tokens)
            written = {span.pages[at // PAGE_TOKENS] for at in range(span.position, end)}
            others = set().union(*(tables[i] for i, other in enumerate(spans) if other.pages != span.pages))
            assert not written & others, "a page is written while another session reads it"

    def _outcome(self, span: Span) -> Outcome:
        if span.tokens and span.slot is not None:
            end = span.position + len(span.tokens)
            held = self._pages[list(span.pages)].reshape(-1)[:end]
            assert _UNWRITTEN not in held, "a position was never evaluated"
            self._logits[span.slot] = logits_after(held)
        if span.draw is None:
            return None
        assert span.slot is not None
        assert span.draw.position == span.position + len(span.tokens)
        assert span.follows or span.draw.position == len(span.draw.history)
        return draw_token(self._logits[span.slot], span.draw)


@dataclass
class Listener:
    """A sink that remembers."""

    events: list[TokenEvent] = field(default_factory=list)
    end: EndEvent | None = None

    def __call__(self, event: TokenEvent | EndEvent) -> None:
        assert self.end is None, "an event after the last one"
        if isinstance(event, EndEvent):
            self.end = event
        else:
            self.events.append(event)

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.events]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events) + (self.end.text if self.end else "")


def run(residence: Residence, limit: int = 10_000) -> int:
    """Tick until there is no work; return how many steps that took."""
    steps = 0
    while residence.tick():
        steps += 1
        assert steps < limit, "no end of work"
    return steps


def decode(residence: Residence, session_id: str, count: int | None = None) -> list[int]:
    """Decode to the end, with whoever else decodes, and return the tokens."""
    listener = Listener()
    residence.decode(session_id, DecodeRequest(max_tokens=count), listener)
    run(residence)
    assert listener.end is not None
    return listener.tokens


def prompt(length: int, variant: int = 0) -> list[int]:
    """Make a prompt, different for each variant from its first token on."""
    return [(7 * i + 31 * variant + i * i) % NAN_TOKEN for i in range(length)]


class BesideEngine(CheckingEngine):
    """The same, whose steps run beside the process, in order with all else that is asked of it. `is_quick`: a step runs
    as soon as it may, and what it gives is still not there before it is waited for; else only once something waits.
    """

    def __init__(self, page_count: int, slot_count: int, max_step_rows: int = 256, *, is_quick: bool = False) -> None:
        super().__init__(page_count, slot_count, max_step_rows)
        self.is_quick = is_quick
        self.most_under_way = 0
        self._waiting: list[tuple[Sequence[Span], list[Outcome]]] = []
        self._unread: list[list[Outcome]] = []
        self._last_tokens = [NAN_TOKEN] * slot_count

    def begin(self, spans: Sequence[Span]) -> Callable[[], list[Outcome]]:
        if self.broken:
            raise RuntimeError("illegal memory access")
        outcomes: list[Outcome] = []
        self._waiting.append(([replace(span, pages=list(span.pages)) for span in spans], outcomes))
        self._unread.append(outcomes)
        self.most_under_way = max(self.most_under_way, len(self._unread))
        assert len(self._unread) <= 2, "a third step under way"
        if self.is_quick:
            self._run()
        return partial(self._awaited, outcomes)

    def can_be_followed(self, spans: Sequence[Span]) -> bool:
        draws = [span for span in spans if span.draw is not None]
        return all(span.tokens and span.draw and span.draw.sampling.repetition_penalty == 1.0 for span in draws)

    def copy_page(self, source: int, target: int) -> None:
        self._run()
        super().copy_page(source, target)

    def logits(self, slot: int) -> NDArray[np.float32]:
        self._run()
        return super().logits(slot)

    def copy_logits(self, source: int, target: int) -> None:
        self._run()
        super().copy_logits(source, target)

    def _awaited(self, outcomes: list[Outcome]) -> list[Outcome]:
        assert self._unread.pop(0) is outcomes, "waited for out of turn"
        self._run(until=outcomes)
        return outcomes

    def _run(self, until: list[Outcome] | None = None) -> None:
        """Run the steps that wait, in order, up to the one that gives `until`."""
        while self._waiting and (until is None or not until):
            spans, outcomes = self._waiting.pop(0)
            outcomes += self.step([self._known(span) for span in spans])
            for span, outcome in zip(spans, outcomes, strict=True):
                if span.slot is not None and isinstance(outcome, Sampled):
                    self._last_tokens[span.slot] = outcome.token

    def _known(self, span: Span) -> Span:
        """Return a span as it stands when it runs. Tokens that came to its session since are none of its business."""
        draw = None if span.draw is None else replace(span.draw, history=span.draw.history[: span.draw.position])
        if not span.follows:
            return replace(span, draw=draw)
        assert span.slot is not None
        assert len(span.tokens) == 1, "only one row can follow"
        return replace(span, tokens=[self._last_tokens[span.slot]], draw=draw)
