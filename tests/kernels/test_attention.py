"""Attention over pages: blocks of 64 tokens, groups of 8 blocks, the row; for every page kind and split of the work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from decodepool_kernels.cpu.kv import KV_KINDS
from decodepool_kernels.cpu.pages import KvPages
from decodepool_kernels.graph import Graph, Tensor, Vector

from tests.kernels import arithmetic
from tests.kernels.probe import Build, Floats, Probe, Rows, assert_same_bits, numbers

TOKENS, PAGES = 1024, 20
POSITIONS = (0, 1, 62, 63, 64, 65, 127, 128, 511, 512, 513, 1023)
SHUFFLED = tuple(int(page) for page in np.random.default_rng(5).permutation(PAGES)[:16])
SHAPES = {
    "one head": (1, 1, 32),
    "grouped": (6, 2, 64),
    "narrow": (4, 4, 16),
    "wide": (2, 1, 128),
    "odd vectors": (3, 1, 48),
}
SHAPE = SHAPES["grouped"]


class Session:
    """Queries, keys and values of 1024 tokens, and what attention gives for any of them."""

    def __init__(
        self,
        shape: tuple[int, int, int] = SHAPE,
        seed: int = 0,
        spread: float = 1.0,
        *,
        window: int | None = None,
        sinks: Floats | None = None,
        soft_cap: float | None = None,
    ) -> None:
        self.heads, self.kv_heads, self.width = shape
        self.q = numbers(seed, TOKENS, self.heads * self.width, spread=spread)
        self.k = numbers(seed + 1, TOKENS, self.kv_heads * self.width, spread=spread)
        self.v = numbers(seed + 2, TOKENS, self.kv_heads * self.width)
        self.window, self.sinks, self.soft_cap = window, sinks, soft_cap

    @property
    def inputs(self) -> dict[str, Floats]:
        return {"q": self.q, "k": self.k, "v": self.v}

    def build(self, graph: Graph, t: dict[str, Tensor]) -> dict[str, Tensor]:
        sinks = None if self.sinks is None else Vector("sinks", self.heads)
        y = graph.attention(
            t["q"], t["k"], t["v"],
            layer=0, heads=self.heads, kv_heads=self.kv_heads, scale=self.width**-0.5,
            window=self.window, sinks=sinks, soft_cap=self.soft_cap,
        )  # fmt: skip
        return {"y": y}

    def probe(self, kind: str, threads: int = 1, pages: int = PAGES, build: Build | None = None) -> Probe:
        memory, vectors = KvPages(kind, [(self.kv_heads, self.width)], pages), {}
        if self.sinks is not None:
            vectors["sinks"] = self.sinks
        return Probe(
            self.inputs, build or self.build, vectors=vectors, pages=memory,
            max_rows=256, table_width=16, threads=threads,
        )  # fmt: skip

    def wanted(self, kind: str, position: int) -> Floats:
        """The written roundings for one row, head by head."""
        visible = position + 1
        keys, values = (
            arithmetic.kept(x[:visible].reshape(visible, self.kv_heads, self.width), kind) for x in (self.k, self.v)
        )
        group = self.heads // self.kv_heads
        heads = self.q[position].reshape(self.heads, self.width)
        rows = [
            arithmetic.attention(
                head, keys[:, i // group], values[:, i // group], self.width**-0.5,
                window=self.window, sink=None if self.sinks is None else self.sinks[i], cap=self.soft_cap,
            )
            for i, head in enumerate(heads)
        ]  # fmt: skip
        return np.concatenate(rows)


def prefilled(probe: Probe, pages: Sequence[int], until: int = TOKENS, chunk: int = 256) -> Floats:
    """Append tokens [0, until) in chunks; return every row's result."""
    parts = [
        probe.step(Rows(range(first, min(first + chunk, until)), pages, first))["y"] for first in range(0, until, chunk)
    ]
    return np.concatenate(parts)


def poison(probe: Probe, bits: int) -> None:
    """Fill every page with one 32-bit pattern."""
    for layer in probe.pages.layers:
        layer.keys.view(np.uint32).fill(bits)
        layer.values.view(np.uint32).fill(bits)


def kinds_that_hold(width: int) -> tuple[str, ...]:
    return KV_KINDS if width % 32 == 0 else tuple(kind for kind in KV_KINDS if kind != "q8_0")


CASES = [(kind, name) for name, shape in SHAPES.items() for kind in kinds_that_hold(shape[2])]


@pytest.mark.parametrize(("kind", "shape"), CASES, ids=[f"{name}-{kind}" for kind, name in CASES])
def test_a_row_takes_the_written_roundings(kind: str, shape: str) -> None:
    session = Session(SHAPES[shape])
    with session.probe(kind) as probe:
        found = prefilled(probe, SHUFFLED)
    for position in POSITIONS:
        assert_same_bits(found[position], session.wanted(kind, position))


@pytest.mark.parametrize("spread", [0.0, 4.0, 40.0], ids=["all scores equal", "sharp", "one token takes all"])
def test_scores_far_apart_and_scores_alike_take_the_written_roundings(spread: float) -> None:
    session = Session(SHAPES["one head"], 20, spread)
    with session.probe("f16") as probe:
        found = prefilled(probe, SHUFFLED)
    for position in POSITIONS:
        assert_same_bits(found[position], session.wanted("f16", position))


@pytest.mark.parametrize("kind", KV_KINDS)
def test_attention_is_near_f64(kind: str) -> None:
    """Against the very keys and values that the pages keep. A score is off by at most D + 1 roundings of sum |q k|
    scale, and a weight e^s by that much relatively, twice (numerator and sum). A chain of 64 tokens, 16 folds of 2
    roundings and exp's 2 ulp come on top.
    """
    session = Session(SHAPES["one head"], 30)
    with session.probe(kind) as probe:
        found = prefilled(probe, SHUFFLED)
    scale = session.width**-0.5
    for position in POSITIONS:
        k, v = (arithmetic.kept(x[: position + 1], kind).astype(np.float64) for x in (session.k, session.v))
        q = session.q[position].astype(np.float64)
        weights = np.exp(k @ q * scale)
        exact, magnitude = weights @ v / weights.sum(), weights @ np.abs(v) / weights.sum()
        off_scores = (session.width + 1) * float((np.abs(k) @ np.abs(q)).max()) * scale
        assert (np.abs(found[position] - exact) <= (2 * off_scores + 64 + 32 + 8) * 2.0**-24 * magnitude).all()


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 16, 17, 64, 100], ids=lambda chunk: f"chunks of {chunk}")
def test_chunks_do_not_matter(kind: str, chunk: int) -> None:
    session, until = Session(), 200
    with session.probe(kind) as probe:
        whole = prefilled(probe, SHUFFLED, until)
        assert_same_bits(prefilled(probe, SHUFFLED, until, chunk), whole)


@pytest.mark.parametrize("kind", KV_KINDS)
def test_where_pages_lie_does_not_matter(kind: str) -> None:
    session, until = Session(), 600
    with session.probe(kind) as probe:
        in_order = prefilled(probe, range(16), until)
        assert_same_bits(prefilled(probe, SHUFFLED, until), in_order)


GARBAGE = {"nan": 0x7FC0FFFF, "signalling nan": 0x7C017F81, "infinity": 0xFC00FC00, "ones": 0xFFFFFFFF}


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("bits", GARBAGE.values(), ids=list(GARBAGE))
def test_what_lies_behind_a_position_does_not_matter(kind: str, bits: int) -> None:
    session = Session()
    with session.probe(kind) as probe:
        clean = prefilled(probe, SHUFFLED, 513)
        poison(probe, bits)
        for position in (0, 1, 62, 63, 64, 65, 127, 128, 511, 512):
            poison(probe, bits)
            prefilled(probe, SHUFFLED, position + 1)
            alone = probe.step(Rows((position,), SHUFFLED, position))["y"]
            assert_same_bits(alone[0], clean[position])


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_rows_of_many_sessions_do_not_see_each_other(kind: str, threads: int) -> None:
    """Sessions of many lengths, each with its own pages and tokens: decode rows and chunks in one step."""
    session, random = Session(), np.random.default_rng(9)
    lengths = (1, 5, 63, 64, 65, 130, 200)
    tables = np.array_split(random.permutation(40), len(lengths))
    tokens = [random.integers(0, TOKENS, length + 20).tolist() for length in lengths]
    with session.probe(kind, threads, pages=40) as probe:
        alone = []
        for table, length, chosen in zip(tables, lengths, tokens, strict=True):
            probe.step(Rows(chosen[:length], table.tolist(), 0))
            alone.append(probe.step(Rows(chosen[length : length + 20], table.tolist(), length))["y"])
        for counts in ((1, 2, 3, 4, 17, 1, 20), (20, 1, 1, 16, 5, 3, 1)):
            runs = [
                Rows(chosen[length : length + count], table.tolist(), length)
                for table, length, chosen, count in zip(tables, lengths, tokens, counts, strict=True)
            ]
            for order in (range(len(runs)), random.permutation(len(runs))):
                found = probe.step(*(runs[i] for i in order))["y"]
                assert_same_bits(found, np.concatenate([alone[i][: counts[i]] for i in order]))


@pytest.mark.parametrize("kind", KV_KINDS)
def test_a_shared_prefix_gives_what_an_own_one_gives(kind: str) -> None:
    session = Session()
    with session.probe(kind) as probe:
        own = prefilled(probe, SHUFFLED, 131)
        probe.pages.copy(SHUFFLED[2], 19)
        shared = [*SHUFFLED[:2], 19]
        assert 19 not in SHUFFLED[:3]
        found = probe.step(Rows((130,), SHUFFLED, 130), Rows((130,), shared, 130))["y"]
    assert_same_bits(found, own[[130, 130]])


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("part", ["k", "v"])
def test_a_fault_in_a_kept_token_shows_in_every_later_row(kind: str, part: str) -> None:
    """A session whose keys or values became NaN must not go on as if nothing had been."""
    session = Session(SHAPES["one head"])
    getattr(session, part)[70, 3] = np.nan
    with session.probe(kind) as probe:
        found = prefilled(probe, SHUFFLED, 200)
    assert np.isfinite(found[:70]).all()
    assert np.isnan(found[70:]).any(axis=1).all()


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_values_past_the_range_of_f16_are_held_at_its_end(kind: str) -> None:
    session = Session(SHAPES["one head"])
    session.v[5] = 1e6
    session.k[9] = -1e30
    with session.probe(kind) as probe:
        found = prefilled(probe, SHUFFLED, 65)
    assert np.isfinite(found).all()
    assert_same_bits(found[64], session.wanted(kind, 64))
