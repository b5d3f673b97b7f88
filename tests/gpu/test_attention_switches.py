"""Attention's switches: near f64 each and together, and the same bytes however rows, pages and blocks are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.packing import pack_float
from decodepool_kernels.cuda.pages import KV_BITS
from decodepool_kernels.cuda.registry import WIDE_HEAD_DIMS
from decodepool_kernels.graph import Matrix

from tests.gpu.probe import Floats, Probe, Rows, numbers, relative_error
from tests.gpu.test_attention import BOUND, PAGES, TOKENS, Session

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu

pytestmark = pytest.mark.gpu

NARROW_CUTS = ({"blocks_at_once": 10**6}, {"blocks_at_once": 0}, {"partial_slots": 0})
"""A decode row's blocks: each by itself, in groups of 8, one after the other."""
WIDE_CUTS: tuple[dict[str, int], ...] = ({"wide_at_once": 0}, {"wide_at_once": 32}, {})
"""Thread blocks for wide units: none, few, as many as it likes."""
SHAPES = ((3, 3, 64), (7, 1, 64), (9, 3, 80), (8, 1, 96), (16, 1, 128), (8, 4, 256), (14, 2, 128))
"""Query heads, kv heads, head size: groups of 1, 3, 7, 8, 16, 2 and 7."""
WINDOWS = (1, 63, 64, 65, 128, 500, 512, 513, TOKENS)
CAP = 1.5
"""Below the larger scores, which have a deviation of 1."""


def switched(gpu: Gpu, shape: tuple[int, int, int], kind: str = "f16", **switches: Any) -> Session:
    """Return a session; `sinks` True is some for its heads."""
    if switches.pop("sinks", False):
        switches["sinks"] = numbers(7, shape[0], spread=2.0)
    return Session(gpu, *shape, kind=kind, **switches)


def awkward(window: int | None) -> list[int]:
    """Return positions about the ends of pages, of groups of pages, and of the first windows that leave tokens out."""
    found = {0, 63, 64, 511, 512, 1023, TOKENS - 1}
    if window is not None:
        found |= {edge + off for edge in (window, window + 64, window + 512) for off in (-1, 0, 1)}
    return sorted(position for position in found if 0 <= position < TOKENS)


def assert_same_however_cut(session: Session, rows: Floats, positions: Sequence[int]) -> None:
    """Hold chunks of 77 rows in other pages, and single rows, runs of 5 and of 40 at the positions, to `rows`."""
    pages = range(2 * PAGES - 1, PAGES - 1, -1)
    assert session.prefilled(77, pages).tobytes() == rows.tobytes()
    wide_cuts = WIDE_CUTS if session.dim in WIDE_HEAD_DIMS else ({},)
    for position in positions:
        for count, cuts in ((1, NARROW_CUTS), (5, NARROW_CUTS), (40, wide_cuts)):
            tokens = range(position, min(position + count, TOKENS))
            for cut in cuts:
                found = session.probe.step(Rows(tokens, pages, position), **cut)
                assert found.tobytes() == rows[tokens.start : tokens.stop].tobytes(), (tokens, cut)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(kind, shape) for shape in SHAPES for kind in KV_BITS if kind == "f16" or shape[2] % 32 == 0],
    ids=str,
)
@pytest.mark.parametrize(
    "switches",
    [{"window": 300, "sinks": True, "soft_cap": CAP}, {"window": 100}, {"sinks": True}, {"soft_cap": CAP}],
    ids="+".join,
)
def test_a_switched_row_is_near_f64_and_the_same_bytes_however_it_is_cut(
    gpu: Gpu, switches: dict[str, Any], shape: tuple[int, int, int], kind: str
) -> None:
    session = switched(gpu, shape, kind, **switches)
    rows = session.prefilled(256, range(PAGES))
    positions = awkward(session.window)
    assert relative_error(rows[positions], session.reference(positions)) < BOUND
    assert_same_however_cut(session, rows, positions)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_of_any_length_is_near_f64_and_the_same_bytes_however_it_is_cut(gpu: Gpu, window: int) -> None:
    session = switched(gpu, (14, 2, 64), window=window)
    rows = session.prefilled(256, range(PAGES))
    positions = awkward(window)
    assert relative_error(rows[positions], session.reference(positions)) < BOUND
    assert_same_however_cut(session, rows, positions)


@pytest.mark.parametrize("cut", NARROW_CUTS, ids=str)
def test_rows_with_switches_are_quantised_for_a_product_as_they_are_left_for_anything_else(
    gpu: Gpu, cut: dict[str, int]
) -> None:
    session = switched(gpu, (8, 2, 64), window=300, sinks=True, soft_cap=CAP)
    session.prefilled(256, range(PAGES))
    matrix = pack_float("F16", numbers(8, 96, 512, spread=0.05).astype(np.float16).view(np.uint16))
    found = []
    for fused in (True, False):
        probe = Probe(
            gpu, {"q": session.q, "k": session.k, "v": session.v},
            lambda g, t: g.matmul(session.build(g, t), Matrix("o", 512, 96)),
            matrices={"o": matrix}, vectors={"sinks": numbers(7, 8, spread=2.0)}, pages=session.pages, fused=fused,
        )  # fmt: skip
        found.append(b"".join(probe.step(Rows([at], range(PAGES), at), **cut).tobytes() for at in awkward(300)))
    assert found[0] == found[1]


def test_switches_that_hide_nothing_leave_every_byte(gpu: Gpu) -> None:
    plain, nothing = switched(gpu, (8, 2, 64)), np.full(8, -np.inf, np.float32)
    hiding_nothing = Session(gpu, 8, 2, 64, window=TOKENS, sinks=nothing, soft_cap=1e29)
    assert hiding_nothing.prefilled(256, range(PAGES)).tobytes() == plain.prefilled(256, range(PAGES)).tobytes()


@pytest.mark.parametrize("kind", KV_BITS)
def test_pages_before_the_window_are_not_looked_at(gpu: Gpu, kind: str) -> None:
    """They may hold another session's tokens, even some that are not numbers."""
    window, position = 130, 1100
    session = switched(gpu, (8, 2, 64), kind, window=window)
    rows = session.prefilled(256, range(PAGES))
    dirty = Session(gpu, 8, 2, 64, pages=session.pages, dirt=np.nan)
    for token in (1, 2):
        dirty.probe.step(Rows([token], [PAGES], token))
    first = (position + 1 - window) // 64
    pages = [PAGES] * first + list(range(first, PAGES))
    for cut in NARROW_CUTS:
        assert session.probe.step(Rows([position], pages, position), **cut).tobytes() == rows[position].tobytes(), cut
    wanted = rows[position : position + 60].tobytes()
    assert session.probe.step(Rows(range(position, position + 60), pages, position)).tobytes() == wanted


def test_rows_far_beyond_their_window_have_the_same_bytes_alone_and_with_all_others(gpu: Gpu) -> None:
    session = switched(gpu, (8, 2, 64), window=4000, sinks=True, tokens=32768)
    rows = session.prefilled(256, range(512))
    for position in (3999, 4000, 8191, 16384, 32766, 32767):
        for cut in NARROW_CUTS:
            alone = session.probe.step(Rows([position], range(512), position), **cut)
            assert alone.tobytes() == rows[position].tobytes(), (position, cut)
    assert relative_error(rows[[32767]], session.reference([32767])) < BOUND
