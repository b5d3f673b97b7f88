"""Attention: near f64, and the same bytes however rows, pages and blocks are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import programs
from decodepool_kernels.cuda.inputs import MAX_ROWS, StepKind
from decodepool_kernels.cuda.pages import KV_BITS, KvPages
from decodepool_kernels.cuda.records import pointer
from decodepool_kernels.cuda.registry import HEAD_DIMS, WIDE_HEAD_DIMS
from decodepool_kernels.graph import Graph, Matrix, Tensor, Vector

from tests.gpu.probe import Floats, Probe, Rows, numbers, relative_error
from tests.gpu.test_products import made

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu, Launch
    from numpy.typing import NDArray

pytestmark = pytest.mark.gpu

BOUND = 2e-6
"""Of the outputs' root mean square, against f64 on the same f16 keys and values; 3e-7 was read."""
PAGES = 40
TOKENS = 1200
POSITIONS = (0, 1, 62, 63, 64, 65, 127, 128, 511, 512, 513, 1023, 1199)
SHAPES = (
    (32, 8, 128),
    (14, 2, 64),
    (9, 3, 64),
    (8, 8, 128),
    (24, 2, 32),
    (4, 2, 16),
    (8, 4, 80),
    (8, 4, 96),
    (8, 2, 256),
)
CUTS = ((512, None), (256, 0), (256, 32), (77, None), (33, 132), (9, None), (5, None))
"""Rows a step, and thread blocks for wide units: none, few, many, as many as it likes."""


def as_f16(values: Floats) -> Floats:
    """Return what f16 keeps of values."""
    return values.astype(np.float16).astype(np.float32)


def as_q8_0(values: Floats) -> Floats:
    """Return what q8_0 keeps of rows of whole blocks of 32."""
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint(blocks / scales), -127, 127)
    kept: Floats = (scales * codes).astype(np.float16).astype(np.float32)
    return kept.reshape(values.shape)


class Session:
    """One session's queries, keys and values, and a probe that attends. `dirt` is the key of token 1 and the value of
    token 2; `coarse` are keys and values that q8_0 keeps as they are; the rest are attention's switches.
    """

    def __init__(
        self,
        gpu: Gpu,
        heads: int,
        kv_heads: int,
        dim: int,
        *,
        kind: str = "f16",
        coarse: bool = False,
        tokens: int = TOKENS,
        pages: KvPages | None = None,
        dirt: float | None = None,
        window: int | None = None,
        sinks: Floats | None = None,
        soft_cap: float | None = None,
        graphs: bool = False,
    ) -> None:
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.kind, self.window, self.sinks, self.soft_cap = kind, window, sinks, soft_cap
        self.pages = pages or KvPages(gpu, [(kv_heads, dim)], max(2 * PAGES, tokens // 64), kind)
        self.q, self.k, self.v = (
            numbers(seed, tokens, count * dim) for seed, count in ((1, heads), (2, kv_heads), (3, kv_heads))
        )
        if coarse:
            self.k, self.v = as_q8_0(self.k), as_q8_0(self.v)
        if dirt is not None:
            self.k[1] = self.v[2] = dirt
        vectors = {} if sinks is None else {"sinks": sinks}
        inputs = {"q": self.q, "k": self.k, "v": self.v}
        self.probe = Probe(gpu, inputs, self.build, vectors=vectors, pages=self.pages, graphs=graphs)

    def build(self, g: Graph, t: dict[str, Tensor]) -> Tensor:
        sinks = None if self.sinks is None else Vector("sinks", self.heads)
        return g.attention(
            t["q"], t["k"], t["v"],
            layer=0, heads=self.heads, kv_heads=self.kv_heads, scale=self.dim**-0.5,
            window=self.window, sinks=sinks, soft_cap=self.soft_cap,
        )  # fmt: skip

    def prefilled(self, chunk: int, pages: Sequence[int], **cut: int) -> Floats:
        """Return every row, in steps of `chunk` rows."""
        count = len(self.q)
        return np.concatenate(
            [self.probe.step(Rows(range(f, min(f + chunk, count)), pages, f), **cut) for f in range(0, count, chunk)]
        )

    def reference(self, positions: Sequence[int]) -> NDArray[np.float64]:
        """Return rows in f64 over keys and values as pages keep them."""
        keep = as_q8_0 if self.kind == "q8_0" else as_f16
        k, v = (
            keep(part).astype(np.float64).reshape(len(part), self.kv_heads, 1, self.dim) for part in (self.k, self.v)
        )
        rows = []
        for position in positions:
            seen = slice(max(0, position + 1 - (self.window or position + 1)), position + 1)
            q = self.q[position].astype(np.float64).reshape(1, self.kv_heads, -1, self.dim)
            scores = (q * k[seen]).sum(-1) * self.dim**-0.5
            if self.soft_cap is not None:
                scores = self.soft_cap * np.tanh(scores / self.soft_cap)
            weights = np.exp(scores)
            total = weights.sum(0)
            if self.sinks is not None:
                total = total + np.exp(self.sinks.astype(np.float64)).reshape(self.kv_heads, -1)
            rows.append(((weights / total)[..., None] * v[seen]).sum(0).reshape(-1))
        return np.stack(rows)


def test_every_head_width_has_a_shape() -> None:
    assert {dim for _, _, dim in SHAPES} == set(HEAD_DIMS)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_near_f64_and_the_same_bytes_however_it_is_cut(gpu: Gpu, shape: tuple[int, int, int]) -> None:
    session = Session(gpu, *shape)
    rows = session.prefilled(256, range(PAGES))
    assert relative_error(rows[list(POSITIONS)], session.reference(POSITIONS)) < BOUND
    for chunk, at_once in CUTS:
        cut = {} if at_once is None or session.dim not in WIDE_HEAD_DIMS else {"wide_at_once": at_once}
        again = session.prefilled(chunk, range(2 * PAGES - 1, PAGES - 1, -1), **cut)
        assert again.tobytes() == rows.tobytes(), (chunk, cut)
    for position in POSITIONS:
        for cut in ({"blocks_at_once": 10**6}, {"blocks_at_once": 0}, {"partial_slots": 0}):
            alone = session.probe.step(Rows([position], range(PAGES), position), **cut)
            assert alone.tobytes() == rows[position].tobytes(), (position, cut)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_more_single_blocks_than_run_at_once_have_the_bytes_of_groups(gpu: Gpu, shape: tuple[int, int, int]) -> None:
    session = Session(gpu, *shape)
    rows = session.prefilled(256, range(PAGES))
    heads, kv_heads, _ = shape
    for position in POSITIONS:
        units = kv_heads * -(-heads // kv_heads // 8) * (position // 64 + 1)
        alone = session.probe.step(Rows([position], range(PAGES), position), blocks_at_once=units - 1)
        assert alone.tobytes() == rows[position].tobytes(), position


@pytest.mark.parametrize("kind", KV_BITS)
@pytest.mark.parametrize("positions", [(1199, 1100, 1023, 900), (1199, 640), (63, 64, 1151, 1152)], ids=str)
def test_thread_blocks_that_take_several_single_blocks_have_the_bytes_of_rows_alone(
    gpu: Gpu, positions: tuple[int, ...], kind: str
) -> None:
    session = Session(gpu, 32, 8, 128, kind=kind)
    rows = session.prefilled(256, range(PAGES))
    units = 8 * sum(position // 64 + 1 for position in positions)
    step = [Rows([position], range(PAGES), position) for position in positions]
    found = session.probe.step(*step, blocks_at_once=units - 1)
    assert found.tobytes() == rows[list(positions)].tobytes()


@pytest.mark.parametrize("kind", KV_BITS)
def test_rows_at_32k_tokens_have_the_same_bytes_alone_and_with_all_others(gpu: Gpu, kind: str) -> None:
    session = Session(gpu, 8, 2, 64, kind=kind, tokens=32768)
    rows = session.prefilled(256, range(512))
    for position in (8191, 16384, 32766, 32767):
        for cut in ({"blocks_at_once": 10**6}, {"blocks_at_once": 0}, {"partial_slots": 0}):
            alone = session.probe.step(Rows([position], range(512), position), **cut)
            assert alone.tobytes() == rows[position].tobytes(), (position, cut)
    assert session.probe.step(Rows(range(32700, 32768), range(512), 32700)).tobytes() == rows[32700:].tobytes()


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[2] % 32 == 0], ids=str)
def test_q8_0_pages_give_the_bytes_of_f16_pages_that_hold_the_same(gpu: Gpu, shape: tuple[int, int, int]) -> None:
    rows = Session(gpu, *shape, coarse=True).prefilled(256, range(PAGES))
    session = Session(gpu, *shape, kind="q8_0")
    for chunk in (5, 77, 512):
        assert session.prefilled(chunk, range(PAGES)).tobytes() == rows.tobytes(), chunk
    for position in POSITIONS:
        alone = session.probe.step(Rows([position], range(PAGES), position))
        assert alone.tobytes() == rows[position].tobytes(), position


@pytest.mark.parametrize(("kind", "shape"), [("f16", shape) for shape in SHAPES] + [("q8_0", SHAPES[0])], ids=str)
def test_pages_that_teams_take_by_turns_leave_the_bytes_of_one_team_and_of_many_rows(
    gpu: Gpu, shape: tuple[int, int, int], kind: str
) -> None:
    """Rows of odd and even pages, alone and more than thread blocks take at once; chunks, and rows that have none."""
    session = Session(gpu, *shape, kind=kind)
    rows = session.prefilled(256, range(PAGES))
    for positions in (*((position,) for position in POSITIONS), (1199, 1100, 1023, 960, 600, 511, 64, 5), (1190,) * 8):
        runs = [Rows([position], range(PAGES), position) for position in positions]
        for partial_slots, shared_at_once in product((1024, 0), (10**6, 0)):
            cut = {"blocks_at_once": 0, "shared_at_once": shared_at_once, "partial_slots": partial_slots}
            found = session.probe.step(*runs, **cut)
            assert found.tobytes() == rows[list(positions)].tobytes(), (positions, cut)
    found = session.probe.step(Rows(range(1180, 1188), range(PAGES), 1180), blocks_at_once=0, shared_at_once=10**6)
    assert found.tobytes() == rows[1180:1188].tobytes()


@pytest.mark.parametrize("kind", KV_BITS)
def test_sessions_in_one_step_do_not_meet(gpu: Gpu, kind: str) -> None:
    session = Session(gpu, 32, 8, 128, kind=kind)
    rows = session.prefilled(256, range(PAGES))
    mixed = [Rows([position], range(PAGES), position) for position in POSITIONS]
    mixed[4:4] = [Rows(range(600, 633), range(PAGES), 600), Rows(range(1, 70), range(PAGES), 1)]
    wanted = np.concatenate([rows[run.position : run.position + len(run.tokens)] for run in mixed])
    for at_once in (0, 8, 132):
        assert session.probe.step(*mixed, wide_at_once=at_once).tobytes() == wanted.tobytes(), at_once


@pytest.mark.parametrize("kind", KV_BITS)
@pytest.mark.parametrize("cut", [{}, {"blocks_at_once": 10**6}, {"partial_slots": 0}], ids=str)
def test_units_that_are_claimed_leave_the_bytes_of_rows_alone_step_after_step(
    gpu: Gpu, cut: dict[str, int], kind: str
) -> None:
    session = Session(gpu, 32, 8, 128, kind=kind)
    rows = session.prefilled(256, range(PAGES))
    for count in (60, 200, 60):
        positions = [(7 * row * row + 900) % TOKENS for row in range(count)]
        step = [Rows([position], range(PAGES), position) for position in positions]
        assert session.probe.step(*step, **cut).tobytes() == rows[positions].tobytes(), count


@pytest.mark.parametrize("kind", KV_BITS)
def test_units_are_claimed_once_each_however_many_launches_there_were(gpu: Gpu, kind: str) -> None:
    """More launches than thread blocks: a count that drifts by one a launch loses a unit at last. Rows of two steps
    differ, so that a unit that nobody takes in one shows what the other left.
    """
    heads, kv_heads, dim = 8, 8, 128
    widths = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
    inputs = {name: numbers(seed, TOKENS, width) for seed, (name, width) in enumerate(widths.items())}

    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        own = {"heads": heads, "kv_heads": kv_heads, "scale": dim**-0.5}
        first = g.attention(t["q"], t["k"], t["v"], layer=0, **own)
        return g.attention(first, t["k"], t["v"], layer=1, **own)

    probe = Probe(gpu, inputs, build, pages=KvPages(gpu, [(kv_heads, dim)] * 2, PAGES, kind), graphs=True)
    chunks = [Rows(range(first, first + 200), range(PAGES), first) for first in range(0, TOKENS, 200)]
    rows = np.concatenate([probe.step(chunk) for chunk in chunks])
    positions = [(7 * row * row + 900) % TOKENS for row in range(48)]
    for step in range(150):
        of_step = [position ^ (step & 1) for position in positions]
        found = probe.step(*(Rows([position], range(PAGES), position) for position in of_step))
        assert found.tobytes() == rows[of_step].tobytes(), step


@pytest.mark.parametrize("kind", KV_BITS)
def test_units_are_claimed_once_the_launch_ahead_has_ended(
    gpu: Gpu, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread block takes all units; the launch behind it, of as many as ever, leaves what they come to elsewhere. A
    unit that this one claims too early is missed by the one ahead: rows of two steps differ, so that it shows.
    """
    heads, kv_heads, dim = 32, 8, 128
    session = Session(gpu, heads, kv_heads, dim, kind=kind, graphs=True)
    rows = session.prefilled(256, range(PAGES))
    launches, elsewhere = session.probe.launches, pointer(gpu.allocate(4 * MAX_ROWS * heads * dim))

    def with_one_behind(width: int, kind: StepKind) -> list[Launch]:
        found = launches(width, kind)
        ahead = next(index for index, launch in enumerate(found) if launch.name == "attention")
        q, stride, layer, _, *others = found[ahead].arguments
        behind = replace(found[ahead], arguments=(q, stride, layer, elsewhere, *others))
        return [*found[:ahead], replace(found[ahead], grid=(1, 1)), behind, *found[ahead + 1 :]]

    monkeypatch.setattr(session.probe, "launches", with_one_behind)
    positions = [(7 * row * row + 900) % TOKENS for row in range(200)]
    for step in range(4):
        of_step = [position ^ (step & 1) for position in positions]
        runs = [Rows([position], range(PAGES), position) for position in of_step]
        assert session.probe.step(*runs, partial_slots=0).tobytes() == rows[of_step].tobytes(), step


FOLD_POSITIONS = (0, 64, 511, 512, 1023, 1100, 2047, 2048, 2400, 4607, 4608, 5999)
"""Up to 94 single blocks: more than a thread keeps on their way at once."""
SWITCHES: dict[str, dict[str, Any]] = {
    "whole": {},
    "window, sinks": {"window": 3000, "sinks": numbers(9, 32)},
}


@pytest.mark.parametrize("switches", SWITCHES)
@pytest.mark.parametrize("shape", [(32, 8, 128), (14, 2, 64), (8, 4, 80), (4, 2, 16), (8, 2, 256)], ids=str)
def test_chunks_folded_in_clusters_have_the_bytes_of_those_that_a_block_a_slice_folds(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], switches: str
) -> None:
    heads, kv_heads, dim = shape
    own = {key: value[:heads] if key == "sinks" else value for key, value in SWITCHES[switches].items()}
    inputs = {
        name: numbers(seed, 6000, count * dim)
        for seed, (name, count) in enumerate(zip("qkv", (heads, kv_heads, kv_heads), strict=True))
    }
    packed, _ = made("Q8_0", 96, heads * dim)

    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        sinks = Vector("sinks", heads) if "sinks" in own else None
        attended = g.attention(
            t["q"], t["k"], t["v"], layer=0, heads=heads, kv_heads=kv_heads, scale=dim**-0.5,
            window=own.get("window"), sinks=sinks,
        )  # fmt: skip
        return g.matmul(attended, Matrix("o", heads * dim, 96))

    pages = KvPages(gpu, [(kv_heads, dim)], 94, "f16")
    vectors = {"sinks": own["sinks"]} if "sinks" in own else {}
    probe = Probe(gpu, inputs, build, matrices={"o": packed}, vectors=vectors, pages=pages)
    for first in range(0, 6000, 500):
        probe.step(Rows(range(first, first + 500), range(94), first))

    def alone(width: int) -> list[bytes]:
        cuts: list[dict[str, int]] = [{}, {"blocks_at_once": 10**6}, {"blocks_at_once": 0}, {"partial_slots": 0}]
        rows = [Rows([position], range(94), position) for position in FOLD_POSITIONS]
        return [probe.step(row, width=width, **cut).tobytes() for row in rows for cut in cuts]

    found = alone(2)
    assert alone(1) == found
    monkeypatch.setattr(programs, "FOLD_CLUSTER_CAPABILITY", 0)
    assert alone(1) == alone(2) == found
    assert len(set(found)) == len(FOLD_POSITIONS)


def test_a_product_behind_the_wide_program_alone_has_the_bytes_of_one_behind_the_narrow(gpu: Gpu) -> None:
    heads, kv_heads, dim = 32, 8, 128
    widths = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
    inputs = {name: numbers(seed, 70, width) for seed, (name, width) in enumerate(widths.items())}
    packed, _ = made("Q8_0", 96, heads * dim)

    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        attended = g.attention(t["q"], t["k"], t["v"], layer=0, heads=heads, kv_heads=kv_heads, scale=dim**-0.5)
        return g.matmul(attended, Matrix("o", heads * dim, 96))

    probe = Probe(gpu, inputs, build, matrices={"o": packed}, pages=KvPages(gpu, [(kv_heads, dim)], 2, "f16"))
    rows = Rows(range(70), range(2))
    wanted = probe.step(rows, wide_at_once=0)
    names = {launch.name for launch in probe.launches(70, StepKind(narrow=False, wide=True))}
    assert names.isdisjoint({"attention", "fold_quantise"})
    assert probe.step(rows).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("kind", KV_BITS)
@pytest.mark.parametrize("dirt", [np.nan, np.inf, 1e30], ids=str)
def test_what_lies_behind_a_row_in_its_page_does_not_reach_it(gpu: Gpu, dirt: float, kind: str) -> None:
    clean = Session(gpu, 8, 4, 64, kind=kind)
    before = clean.probe.step(Rows([100], [0, 1], 70))
    dirty = Session(gpu, 8, 4, 64, pages=clean.pages, dirt=dirt)
    for token in (1, 2):
        dirty.probe.step(Rows([token], [0, 1], 90 + token))
    assert clean.probe.step(Rows([100], [0, 1], 70)).tobytes() == before.tobytes()


@pytest.mark.parametrize("kind", KV_BITS)
@pytest.mark.parametrize("token", [1, 2])
def test_a_key_or_value_that_is_not_a_number_shows_in_every_row_that_sees_it(gpu: Gpu, token: int, kind: str) -> None:
    session = Session(gpu, 8, 4, 64, kind=kind, dirt=np.nan)
    session.probe.step(Rows([token], [0], 0))
    assert np.isnan(session.probe.step(Rows([100], [0], 1))).all()
