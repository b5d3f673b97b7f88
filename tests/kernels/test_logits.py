"""The end of a step: rows whose logits are wanted are gathered, normed, multiplied, and kept in their slots."""

from __future__ import annotations

import numpy as np
import pytest
from decodepool_kernels.cpu.packing import PackedMatrix
from decodepool_kernels.graph import Graph, Matrix, Tensor

from tests.kernels import arithmetic
from tests.kernels.matrices import planes
from tests.kernels.probe import Floats, Probe, Rows, assert_same_bits, numbers, vector
from tests.kernels.test_products import float_matrix

WIDTH, VOCABULARY, SLOTS, EPSILON = 96, 259, 6, 1e-5
X, NORM = numbers(0, VOCABULARY, WIDTH), numbers(1, WIDTH)
QUANTISED = planes("Q4_1", VOCABULARY, WIDTH)
FLOAT, FLOAT_WEIGHTS = float_matrix("F16", numbers(2, VOCABULARY, WIDTH, spread=0.1))
OUTPUTS: dict[str, PackedMatrix] = {"quantised": QUANTISED.packed, "float": FLOAT}


def ending(graph: Graph, t: dict[str, Tensor]) -> dict[str, Tensor]:
    graph.logits(t["x"], vector("norm", NORM), EPSILON, Matrix("out", WIDTH, VOCABULARY))
    return {}


def probe_of(kind: str, threads: int = 1, x: Floats = X) -> Probe:
    return Probe(
        {"x": x}, ending, matrices={"out": OUTPUTS[kind]}, vectors={"norm": NORM}, slots=SLOTS, threads=threads
    )


def wanted(kind: str, token: int) -> Floats:
    normed = arithmetic.norm(X[token : token + 1], NORM, EPSILON)
    if kind == "float":
        return arithmetic.matmul_float(FLOAT_WEIGHTS, normed).ravel()
    codes = QUANTISED.codes.astype(np.int64)
    return arithmetic.matmul(codes, QUANTISED.wide_scales, QUANTISED.wide_minima, QUANTISED.zero, normed).ravel()


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_last_row_of_each_run_lands_in_its_slot(kind: str, threads: int) -> None:
    with probe_of(kind, threads) as probe:
        probe.step(
            Rows((7, 8, 9), slot=4),
            Rows((1,)),
            Rows((2, 3), slot=0),
            Rows(()),
            Rows((258,), slot=5),
            Rows((0,), slot=2),
        )
        for slot, token in ((4, 9), (0, 3), (5, 258), (2, 0)):
            assert_same_bits(probe.backend.logits(slot), wanted(kind, token))


@pytest.mark.parametrize("kind", OUTPUTS)
def test_slots_that_a_step_does_not_name_keep_their_logits(kind: str) -> None:
    with probe_of(kind) as probe:
        probe.step(*(Rows((slot,), slot=slot) for slot in range(SLOTS)))
        before = [probe.backend.logits(slot).copy() for slot in range(SLOTS)]
        probe.step(Rows((11,)), Rows((12, 13), slot=3))
        for slot in {*range(SLOTS)} - {3}:
            assert_same_bits(probe.backend.logits(slot), before[slot])
        assert_same_bits(probe.backend.logits(3), wanted(kind, 13))


@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_step_that_wants_no_logits_leaves_all_alone(kind: str) -> None:
    with probe_of(kind, threads=2) as probe:
        probe.step(Rows((5,), slot=1))
        probe.step(Rows((6, 7, 8)))
        probe.step()
        assert_same_bits(probe.backend.logits(1), wanted(kind, 5))


BEYOND = {
    "a token below 0": (Rows((1, -1)), "vocabulary of 259"),
    "a token past the vocabulary": (Rows((1, VOCABULARY)), "vocabulary of 259"),
    "more rows than a step has": (Rows((1,) * 256, range(4)), "257 rows in a step of 256"),
    "a position whose page is not there": (Rows((1, 2), (3,), 63), "position 64 with 1 pages"),
    "a position past the table": (Rows((1,), range(18), 17 * 64), "position 1088 with 18 pages, in a table of 17"),
    "a page below 0": (Rows((1,), (-1,)), "pages -1 to -1 of 17"),
    "a page that was not allocated": (Rows((1,), (3, 17), 64), "pages 3 to 17 of 17"),
    "a slot below 0": (Rows((1,), slot=-1), "slot -1 of 6"),
    "a slot that was not allocated": (Rows((1,), slot=SLOTS), "slot 6 of 6"),
}


@pytest.mark.parametrize(("run", "text"), BEYOND.values(), ids=list(BEYOND))
def test_what_was_not_allocated_is_stopped_at_the_door(run: Rows, text: str) -> None:
    """And the next step is as good as any."""
    with probe_of("float") as probe:
        with pytest.raises(ValueError, match=text):
            probe.step(Rows((2,), slot=1), run)
        probe.step(Rows((1,), slot=0))
        assert_same_bits(probe.backend.logits(0), wanted("float", 1))


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
def test_a_faulty_row_has_faulty_logits_and_its_neighbours_have_theirs(kind: str, fault: float) -> None:
    x = X.copy()
    x[5, 40] = fault
    with probe_of(kind, 2, x) as probe:
        probe.step(*(Rows((token,), slot=slot) for slot, token in enumerate((4, 5, 6))))
        assert not np.isfinite(probe.backend.logits(1)).any()
        for slot, token in ((0, 4), (2, 6)):
            assert_same_bits(probe.backend.logits(slot), wanted(kind, token))
