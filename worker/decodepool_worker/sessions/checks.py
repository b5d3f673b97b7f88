"""What a request must be before anything is changed or reaches the engine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.errors import ContextFull, InvalidRequest, LengthDiffers

SEED_LIMIT = 2**64


def seed_or_new(seed: int | None) -> int:
    """Return the seed, or one of 63 random bits: those fit into everybody's signed integers."""
    if seed is None:
        return secrets.randbits(63)
    if not 0 <= seed < SEED_LIMIT:
        raise InvalidRequest("seed", f"{seed} is not within 0..2**64 - 1")
    return seed


def require_tokens(tokens: Sequence[int], vocabulary_size: int, length: int, context_tokens: int) -> None:
    """Demand at least one token, all in the vocabulary, that fit behind the `length` there are."""
    if not tokens:
        raise InvalidRequest("tokens", "there is nothing to evaluate: at least one token is needed")
    if min(tokens) < 0 or max(tokens) >= vocabulary_size:
        index, token = next((i, t) for i, t in enumerate(tokens) if not 0 <= t < vocabulary_size)
        raise InvalidRequest(f"tokens.{index}", f"{token} is not within 0..{vocabulary_size - 1}")
    if length + len(tokens) > context_tokens:
        raise ContextFull(length, len(tokens), context_tokens)


def require_length(expected: int | None, length: int) -> None:
    """Demand that a session holds as many tokens as its client expects, if it does."""
    if expected is not None and expected != length:
        raise LengthDiffers(expected, length)


def require_context(context_tokens: int | None, largest: int) -> int:
    """Return the context of a new session: `largest` unless it asks for less."""
    if context_tokens is None:
        return largest
    if not 0 < context_tokens <= largest:
        raise InvalidRequest("context_tokens", f"{context_tokens} is not within 1..{largest}")
    return context_tokens


def require_fork(at: int | None, length: int, seeds: Sequence[int | None]) -> int:
    """Return how many tokens the forks keep; there must be one fork and one token at least."""
    if not seeds:
        raise InvalidRequest("n", "0 forks were asked for: at least one is needed")
    if at is None:
        return length
    if not 0 < at <= length:
        raise InvalidRequest("at", f"{at} is not within 1..{length}")
    return at


def require_request(request: DecodeRequest) -> None:
    """Demand what a decode's loop relies on; sampling values are the engine's to judge."""
    if request.max_tokens is not None and request.max_tokens < 0:
        raise InvalidRequest("max_tokens", f"{request.max_tokens} is negative")
    if not all(request.stop_strings):
        raise InvalidRequest("stop", "a stop string is empty")
