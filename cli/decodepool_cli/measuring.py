"""The clock of `decodepool bench`: steps on an engine, timed one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter

from decodepool_worker.engine.rows import PAGE_TOKENS, Draw, Engine, Outcome, OverlappingEngine, Sampling, Span

ROOM_TOKENS = PAGE_TOKENS
"""What a session holds beyond its context, to be timed: steps start again at the context once they have filled it. What
is measured is a step at a context, not over a stretch of them.
"""
WARM_UP_SECONDS = 0.5
"""Time for which what is timed runs before. A GPU that rested runs faster, one that read prompts slower, until its
clocks have settled at what the work draws; a server's have.
"""
WARM_UP_RUNS = 2
"""At least: the second is the first that was begun behind another."""
STEP_SECONDS = 1.0
"""Time for one width, if that allows MIN_STEPS."""
MIN_STEPS = 5
PREFILL_RUNS = 3
LONG_PROMPT_TOKENS = 4096
"""Prompts beyond this are timed once, and warmed up by so many of their tokens."""
GREEDY = Sampling(temperature=0.0)
SAMPLED = Sampling(temperature=0.8, top_p=0.95)
"""A usual way to draw that has to weigh and order a whole row of logits."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of the repetitions of one thing, and between which readings of `perf_counter` they ran."""

    seconds: tuple[float, ...]
    began: float
    ended: float

    @property
    def median(self) -> float:
        """What is reported."""
        return median(self.seconds)

    @property
    def fastest(self) -> float:
        """The one with the least noise."""
        return min(self.seconds)

    @property
    def slowest(self) -> float:
        """The one with the most."""
        return max(self.seconds)


def least_seconds(kinds_of_steps: int, prompts: int) -> float:
    """Return how long it takes to time so many kinds of steps, and prompts, on a machine that is as fast as can be."""
    return kinds_of_steps * (WARM_UP_SECONDS + STEP_SECONDS) + prompts * WARM_UP_SECONDS


def time_prefill(engine: Engine, pages: list[int], tokens: list[int]) -> Timing:
    """Time a prompt of `tokens`, a long one once; warmed up by its beginning."""
    beginning = tokens[:LONG_PROMPT_TOKENS]
    _timed(partial(read_prompt, engine, pages, beginning), WARM_UP_SECONDS, at_least=1)
    runs = PREFILL_RUNS if len(beginning) == len(tokens) else 1
    return _timed(partial(read_prompt, engine, pages, tokens), 0.0, at_least=runs)


def read_prompt(engine: Engine, pages: list[int], tokens: list[int]) -> None:
    """Evaluate a prompt, in steps as wide as they go, with the logits after it."""
    under_way = None
    for begin in range(0, len(tokens), engine.max_step_rows):
        chunk = tokens[begin : begin + engine.max_step_rows]
        is_last = begin + len(chunk) == len(tokens)
        following = begun(engine, [Span(pages, begin, chunk, 0 if is_last else None)])
        if under_way is not None:
            under_way()
        under_way = following
    if under_way is not None:
        under_way()


def time_decode(engine: Engine, tables: list[list[int]], context: int, sampling: Sampling = GREEDY) -> Timing:
    """Time steps that evaluate and draw one token for each table, whose first `context` tokens are there; each is begun
    as a server begins it, before the one ahead is read where the engine allows that, and warmed up by steps like it.
    """
    decoding = Decoding(engine, tables, context, sampling)
    _timed(decoding.step, WARM_UP_SECONDS, at_least=WARM_UP_RUNS)
    timing = _timed(decoding.step, STEP_SECONDS, at_least=MIN_STEPS)
    decoding.finish()
    return timing


def run_one_step(engine: Engine, tables: list[list[int]], context: int) -> None:
    """Run such a step, for whoever measures its parts."""
    decoding = Decoding(engine, tables, context, GREEDY)
    decoding.step()
    decoding.finish()


class Decoding:
    """Sessions that decode side by side, a page table each, from `context` tokens on; from there again once each has
    filled its room.
    """

    def __init__(
        self, engine: Engine, tables: list[list[int]], context: int, sampling: Sampling, room_tokens: int = ROOM_TOKENS
    ) -> None:
        self._engine, self._tables, self._sampling = engine, tables, sampling
        self._context, self._room_tokens = context, room_tokens
        self._done = 0
        self._tokens = [0] * len(tables)
        self._is_chained = can_be_followed(engine, self._spans())
        self._under_way: Callable[[], list[Outcome]] | None = None

    def step(self) -> None:
        """Bring one step to its end, the next one begun behind it where that can be."""
        under_way = self._under_way or begun(self._engine, self._spans())
        if self._is_chained:
            self._under_way = begun(self._engine, self._spans(ahead=1))
        self._take(under_way())
        self._done += 1

    def finish(self) -> None:
        """Wait for the step that is under way."""
        if self._under_way is not None:
            self._take(self._under_way())

    def _take(self, outcomes: list[Outcome]) -> None:
        self._tokens = [getattr(outcome, "token", 0) for outcome in outcomes]

    def _spans(self, ahead: int = 0) -> list[Span]:
        """Return the rows of the next position, or of one whose tokens are not read yet."""
        position = self._context + (self._done + ahead) % self._room_tokens
        draw = Draw(self._sampling, 0, position + 1, [])  # nothing is penalised
        rows = enumerate(zip(self._tables, self._tokens, strict=True))
        return [Span(pages, position, [token], slot, draw, follows=ahead > 0) for slot, (pages, token) in rows]


def begun(engine: Engine, spans: list[Span]) -> Callable[[], list[Outcome]]:
    """Begin a step, behind the one under way, where the engine allows that; return what brings it to its end."""
    if isinstance(engine, OverlappingEngine) and engine.can_be_followed(spans):
        return engine.begin(spans)
    return partial(engine.step, spans)


def can_be_followed(engine: Engine, spans: list[Span]) -> bool:
    """Tell whether steps of such spans may begin one behind the other."""
    return isinstance(engine, OverlappingEngine) and engine.can_be_followed(spans)


def copy_context(engine: Engine, source: list[int], target: list[int], context: int) -> None:
    """Give another table its own copy of the first `context` tokens."""
    for page, (old, new) in enumerate(zip(source, target, strict=True)):
        if page * PAGE_TOKENS < context:
            engine.copy_page(old, new)


def _timed(run: Callable[[], None], seconds: float, at_least: int) -> Timing:
    """Run for so long, and so many times at least; time each."""
    readings = [perf_counter()]
    while len(readings) <= at_least or readings[-1] - readings[0] < seconds:
        run()
        readings.append(perf_counter())
    return Timing(tuple(end - begin for begin, end in pairwise(readings)), readings[0], readings[-1])
