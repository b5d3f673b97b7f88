"""Attention: near f64, and the same bytes however rows, pages and blocks are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.pages import KvPages
from decodepool_kernels.cuda.registry import HEAD_DIMS, WIDE_HEAD_DIMS
from decodepool_kernels.graph import Graph, Tensor

from tests.gpu.probe import Floats, Probe, Rows, numbers, relative_error

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu
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
CUTS = ((256, 0), (256, 32), (77, None), (33, 132), (9, None), (5, None))
"""Rows a step, and thread blocks for wide units: none, few, many, as many as it likes."""


class Session:
    """One session's queries, keys and values, and a probe that attends. `dirt` is the key of token 1 and the value of
    token 2.
    """

    def __init__(
        self, gpu: Gpu, heads: int, kv_heads: int, dim: int, *, pages: KvPages | None = None, dirt: float | None = None
    ) -> None:
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.pages = pages or KvPages(gpu, [(kv_heads, dim)], 2 * PAGES)
        self.q, self.k, self.v = (
            numbers(seed, TOKENS, count * dim) for seed, count in ((1, heads), (2, kv_heads), (3, kv_heads))
        )
        if dirt is not None:
            self.k[1] = self.v[2] = dirt
        self.probe = Probe(gpu, {"q": self.q, "k": self.k, "v": self.v}, self._build, pages=self.pages)

    def _build(self, g: Graph, t: dict[str, Tensor]) -> Tensor:
        scale = self.dim**-0.5
        return g.attention(t["q"], t["k"], t["v"], layer=0, heads=self.heads, kv_heads=self.kv_heads, scale=scale)

    def prefilled(self, chunk: int, pages: Sequence[int], **cut: int) -> Floats:
        """Return every row, in steps of `chunk` rows."""
        firsts = range(0, TOKENS, chunk)
        return np.concatenate(
            [self.probe.step(Rows(range(f, min(f + chunk, TOKENS)), pages, f), **cut) for f in firsts]
        )

    def reference(self, positions: Sequence[int]) -> NDArray[np.float64]:
        """Return rows in f64 over keys and values as pages keep them."""
        k, v = (
            part.astype(np.float16).astype(np.float64).reshape(TOKENS, self.kv_heads, 1, self.dim)
            for part in (self.k, self.v)
        )
        rows = []
        for position in positions:
            q = self.q[position].astype(np.float64).reshape(1, self.kv_heads, -1, self.dim)
            scores = (q * k[: position + 1]).sum(-1) * self.dim**-0.5
            weights = np.exp(scores - scores.max(0))
            rows.append(((weights / weights.sum(0))[..., None] * v[: position + 1]).sum(0).reshape(-1))
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


def test_sessions_in_one_step_do_not_meet(gpu: Gpu) -> None:
    session = Session(gpu, 32, 8, 128)
    rows = session.prefilled(256, range(PAGES))
    mixed = [Rows([position], range(PAGES), position) for position in POSITIONS]
    mixed[4:4] = [Rows(range(600, 633), range(PAGES), 600), Rows(range(1, 70), range(PAGES), 1)]
    wanted = np.concatenate([rows[run.position : run.position + len(run.tokens)] for run in mixed])
    for at_once in (0, 8, 132):
        assert session.probe.step(*mixed, wide_at_once=at_once).tobytes() == wanted.tobytes(), at_once


@pytest.mark.parametrize("dirt", [np.nan, np.inf, 1e30], ids=str)
def test_what_lies_behind_a_row_in_its_page_does_not_reach_it(gpu: Gpu, dirt: float) -> None:
    clean = Session(gpu, 8, 4, 64)
    before = clean.probe.step(Rows([100], [0, 1], 70))
    dirty = Session(gpu, 8, 4, 64, pages=clean.pages, dirt=dirt)
    for token in (1, 2):
        dirty.probe.step(Rows([token], [0, 1], 90 + token))
    assert clean.probe.step(Rows([100], [0, 1], 70)).tobytes() == before.tobytes()


@pytest.mark.parametrize("token", [1, 2])
def test_a_key_or_value_that_is_not_a_number_shows_in_every_row_that_sees_it(gpu: Gpu, token: int) -> None:
    session = Session(gpu, 8, 4, 64, dirt=np.nan)
    session.probe.step(Rows([token], [0], 0))
    assert np.isnan(session.probe.step(Rows([100], [0], 1))).all()
