"""What a step takes and gives: spans of rows in, drawn tokens out. The only door between sessions and an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from decodepool_sizing import kv
from numpy.typing import NDArray

PAGE_TOKENS = kv.PAGE_TOKENS
"""Tokens in a page: sessions and engine deal in the same pages that the plan counts."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a session draws its tokens. `temperature` 0 is greedy: the lowest id among equals."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Draw:
    """A token to be drawn from a row's logits.

    `position` is the index the token will have in its session, and the counter of the random stream: so a stream does
    not depend on how decodes are cut into calls. `history` is every token before it; penalties count all of them, since
    a session is only its token list. `top_logprobs` None asks for no log-probabilities.
    """

    sampling: Sampling
    seed: int
    position: int
    history: Sequence[int]
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one session in one step.

    `pages[i]` is the physical page of tokens [64 i, 64 i + 64); `position` is that of `tokens[0]`. The last row's
    logits are kept in resident row `slot` (None: not needed). With no tokens, `draw` draws from the logits already
    resident in `slot`. Where a span `follows`, its one token is what `slot` drew in the step before, which the device
    knows and nobody has read: what `tokens` holds only counts.
    """

    pages: Sequence[int]
    position: int
    tokens: Sequence[int]
    slot: int | None = None
    draw: Draw | None = None
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Sampled:
    """A drawn token; with log-probabilities of it and of the best, best first, where asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class NonFiniteLogits:
    """A row's logits held NaN or infinity: its session ends with this fault, its neighbours do not."""

    message: str


Outcome = Sampled | NonFiniteLogits | None


class Engine(Protocol):
    """One forward pass over any mix of prefill and decode rows. A row's bits depend on its own session alone."""

    page_count: int
    slot_count: int
    max_step_rows: int
    vocabulary_size: int

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        """Evaluate every row, keep logits where asked, draw where asked; one outcome a span. Releases the GIL."""

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page of every layer, for a fork inside a page."""

    def logits(self, slot: int) -> NDArray[np.float32]:
        """Return the resident logits of a slot, `[vocabulary]`."""

    def copy_logits(self, source: int, target: int) -> None:
        """Copy one resident logits row, for a fork at the end of a session."""

    def close(self) -> None:
        """Free everything the engine holds."""


@runtime_checkable
class OverlappingEngine(Engine, Protocol):
    """An engine whose steps run beside this process. Everything asked of it happens in the order in which it is asked
    for, steps included.
    """

    def begin(self, spans: Sequence[Span]) -> Callable[[], list[Outcome]]:
        """Start a step; return what waits for its end and gives what `step` gives. One more step may be begun behind it
        where it `can_be_followed`; steps are waited for in order.
        """

    def can_be_followed(self, spans: Sequence[Span]) -> bool:
        """Tell whether the next step may begin before anybody has read what these spans draw: each token that is drawn
        may then be evaluated by a span that follows it.
        """
