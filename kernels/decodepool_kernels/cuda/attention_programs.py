"""How attention's two programs fill an SM: how deep their rings of half pages are. None of it reaches the bits."""

from __future__ import annotations

from dataclasses import dataclass

from decodepool_kernels.cuda.inputs import COLUMNS
from decodepool_kernels.cuda.pages import KV_BITS, head_page_bytes
from decodepool_kernels.cuda.wide_units import PLACES

MOST_HALVES = 8
FEWEST_HALVES = 3
MOST_NARROW_BYTES = 64 << 10
"""Of the narrow program's ring: what is deeper hides nothing more, and keeps the kernels next to it off the SM."""
ATTENTION_STATIC_BYTES = 6144
"""More than what the programs share of their own, beside queries, and what small kernels hold on the same SM."""
QUERY_SLOTS, QUERY_PADDING = 2, 16
"""Units whose queries the narrow program keeps at hand (incoming.cuh), and more floats than lie beside each."""
SMALL_HALF_BYTES = 9 << 10
SMALL_HALF_BLOCKS = {KV_BITS["f16"]: 3, KV_BITS["q8_0"]: 4}
"""Thread blocks that share an SM where halves of a page are so small, in place of two."""
MOST_CROWDED_BLOCKS = 3
"""The same for short runs of blocks, which gain more by starting side by side than by what a ring holds."""
TEAMS, TEAM_THREADS, MOST_SHARED_BYTES = 2, 128, 128 << 10
"""Teams of a thread block that take a group's pages by turns, one block an SM, and the most of their ring."""
HANDED_STATES = 2
"""On their way from one team to the other: 16 bytes a thread, and as many for each 64 dims."""
WORKERS = 256
"""Threads of a block of the wide program that hold a total."""
RAW_STAGES = 4
"""Halves of a page that wait to be widened, as wide_pages.cuh has it."""
PLACE_STATE_BYTES = 8
"""Of a place's largest score and its sum of weights, which each of 4 lanes keeps."""


@dataclass(frozen=True)
class RingCut:
    """Thread blocks that share an SM, halves of a page in each one's ring, the shared memory it asks for, and the teams
    of its threads.
    """

    blocks: int
    stages: int
    shared_bytes: int
    teams: int = 1


def narrow_ring(
    head_dim: int, kv_bits: int, shared_bytes: int, *, crowded: bool = False, shared: bool = False
) -> RingCut:
    """Return how `attention` runs on SMs whose blocks may have `shared_bytes`; `crowded` where its units are single
    blocks of few rows, and more than run at once, `shared` where they are groups, an SM gets no more than one, and has
    room for two teams.
    """
    half_bytes = head_page_bytes(head_dim, kv_bits)
    blocks = SMALL_HALF_BLOCKS[kv_bits] if half_bytes <= SMALL_HALF_BYTES else 2
    own_bytes = ATTENTION_STATIC_BYTES + QUERY_SLOTS * COLUMNS * 4 * (head_dim + QUERY_PADDING)
    if shared:
        handed_bytes = HANDED_STATES * TEAM_THREADS * 16 * (1 + -(-head_dim // 64))
        fitting = min(MOST_SHARED_BYTES, shared_bytes - own_bytes - handed_bytes) // half_bytes
        stages = min(MOST_HALVES, fitting) // (2 * TEAMS) * 2 * TEAMS  # so that of a unit a slot is one team's
        if stages:
            return RingCut(1, stages, stages * half_bytes, TEAMS)
    if crowded and MOST_CROWDED_BLOCKS * (own_bytes + FEWEST_HALVES * half_bytes) <= shared_bytes:
        blocks = max(blocks, MOST_CROWDED_BLOCKS)
    fitting = (shared_bytes // blocks - own_bytes) // half_bytes
    stages = max(FEWEST_HALVES, min(MOST_HALVES, fitting, MOST_NARROW_BYTES // half_bytes))
    return RingCut(blocks, stages, stages * half_bytes)


def wide_ring(head_dim: int, kv_bits: int, shared_bytes: int) -> RingCut:
    """Return how `attention_wide` runs: tiles of f16, low halves of queries, totals, and what waits to be widened."""
    tile_bytes = head_page_bytes(head_dim, KV_BITS["f16"])
    own = PLACES * head_dim * 2 + PLACES * head_dim * 4 + WORKERS * 2 * PLACE_STATE_BYTES
    raw = 0 if kv_bits == KV_BITS["f16"] else RAW_STAGES * head_page_bytes(head_dim, kv_bits)
    stages = min(MOST_HALVES, (shared_bytes - ATTENTION_STATIC_BYTES - own - raw) // tile_bytes)
    return RingCut(1, stages, stages * tile_bytes + own + raw)
