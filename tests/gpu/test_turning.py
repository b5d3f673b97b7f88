"""Rows that are runs of their own: attention turns their queries and keys itself, with the bits of three launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.pages import KV_BITS, KvPages
from decodepool_kernels.graph import Graph, Rotation, Tensor

from tests.gpu.probe import Probe, Rows, numbers

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu

pytestmark = pytest.mark.gpu

TOKENS, PAGES = 256, 12
SESSIONS = 5


@dataclass(frozen=True)
class Heads:
    """Heads of one shape, turned by `half` pairs each."""

    heads: int
    kv_heads: int
    dim: int
    half: int
    interleaved: bool = False
    window: int | None = None

    def build(self, g: Graph, t: dict[str, Tensor]) -> Tensor:
        """Attention over turned queries and keys."""
        rotation = Rotation(tuple(100.0 ** (-i / self.half) for i in range(self.half)), 1.25, self.interleaved)
        q, k = g.rope(t["q"], self.heads, rotation), g.rope(t["k"], self.kv_heads, rotation)
        return g.attention(
            q, k, t["v"],
            layer=0, heads=self.heads, kv_heads=self.kv_heads, scale=self.dim**-0.5, window=self.window,
        )  # fmt: skip

    def probe(self, gpu: Gpu, kind: str, *, fused: bool) -> Probe:
        """A probe with pages of its own."""
        widths = {"q": self.heads * self.dim, "k": self.kv_heads * self.dim, "v": self.kv_heads * self.dim}
        inputs = {name: numbers(seed, TOKENS, width) for seed, (name, width) in enumerate(widths.items())}
        pages = KvPages(gpu, [(self.kv_heads, self.dim)], SESSIONS * PAGES, kind)
        return Probe(gpu, inputs, self.build, pages=pages, fused=fused)


EVERY_KIND = {
    "grouped heads of 128": Heads(32, 8, 128, 64),
    "more query heads than a unit takes": Heads(12, 1, 64, 32),
    "some pairs turned, interleaved": Heads(4, 2, 64, 24, interleaved=True),
    "a window": Heads(4, 2, 128, 64, window=70),
}
SHAPES = {
    **{f"{name}, {kind}": (heads, kind) for name, heads in EVERY_KIND.items() for kind in KV_BITS},
    "heads of 80": (Heads(8, 4, 80, 16), "f16"),
    "heads of 16": (Heads(4, 4, 16, 8), "f16"),
    "heads of 256": (Heads(4, 2, 256, 128), "q8_0"),
    "an odd number of pairs": (Heads(4, 2, 32, 5), "f16"),
}
POSITIONS = (0, 1, 2, 62, 63, 64, 65, 127, 128, 200, 511, 512, 513, 514)


def rows_at(step: int) -> list[Rows]:
    """Each session's row of a step, at positions of its own."""
    return [
        Rows(
            [(7 * step + 31 * s) % TOKENS],
            range(s * PAGES, (s + 1) * PAGES),
            POSITIONS[(step + 3 * s) % len(POSITIONS)],
        )
        for s in range(SESSIONS)
    ]


@pytest.mark.parametrize(("heads", "kind"), SHAPES.values(), ids=list(SHAPES))
def test_attention_turns_and_appends_with_the_bits_of_three_launches(gpu: Gpu, heads: Heads, kind: str) -> None:
    """Step by step, so that a row reads what rows before it appended."""
    fused, plain = (heads.probe(gpu, kind, fused=fused) for fused in (True, False))
    for cut in ({}, {"blocks_at_once": 10**6}, {"partial_slots": 0}):
        for step in range(len(POSITIONS)):
            found = fused.step(*rows_at(step), **cut)
            assert found.tobytes() == plain.step(*rows_at(step), **cut).tobytes(), (step, cut)
            assert np.isfinite(found).all()


def test_a_launch_is_saved_where_every_row_is_alone(gpu: Gpu) -> None:
    probe = EVERY_KIND["grouped heads of 128"].probe(gpu, "f16", fused=True)
    names = [
        [launch.name for launch in probe.launches(rows, alone=alone)]
        for rows, alone in ((16, True), (16, False), (64, True))
    ]
    assert ["rope_append" in each for each in names] == [False, True, True]
