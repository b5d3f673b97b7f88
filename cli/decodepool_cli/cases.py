"""What `decodepool bench` times: sessions by context, and prompts."""

from __future__ import annotations

from dataclasses import dataclass

from decodepool_sizing.kv import pages

from decodepool_cli.measuring import ROOM_TOKENS


@dataclass(frozen=True, slots=True)
class Cases:
    """`decodes` are (context, sessions), `prompts` lengths; `sampled` and `profiled` are some of `decodes`."""

    decodes: tuple[tuple[int, int], ...]
    prompts: tuple[int, ...]
    sampled: tuple[tuple[int, int], ...] = ()
    profiled: tuple[tuple[int, int], ...] = ()

    @property
    def longest(self) -> int:
        """Tokens that a session must hold to be timed."""
        return max(*self.prompts, *(context for context, _ in self.decodes)) + ROOM_TOKENS

    @property
    def widest(self) -> int:
        """Sessions that decode together."""
        return max(sessions for _, sessions in self.decodes)

    @property
    def page_count(self) -> int:
        """Pages of the case that takes the most."""
        return max(sessions * pages(context + ROOM_TOKENS) for context, sessions in self.decodes)


def even_cases(context: int, widths: list[int], *, is_profiled: bool) -> Cases:
    """Return steps of each width, all sessions at one context, and a prompt of that length."""
    decodes = tuple((context, sessions) for sessions in widths)
    return Cases(decodes, (context,), sampled=decodes, profiled=decodes if is_profiled else ())


SHORT = tuple((1024, sessions) for sessions in (1, 2, 4, 8, 16, 32, 64))
LONG = ((8192, 1), (8192, 16), (32_768, 1), (32_768, 4))


def shape_cases(*, is_profiled: bool) -> Cases:
    """Return what a model of a named shape is held against: few sessions and many, short contexts and long."""
    profiled = ((1024, 1), (1024, 16), (1024, 64), (8192, 16)) if is_profiled else ()
    return Cases(SHORT + LONG, (1024, 8192, 32_768), sampled=SHORT, profiled=profiled)


COMPACT_CASES = Cases(((8192, 16),), (8192,))
"""The same model with keys and values kept in fewer bytes."""
