"""Each gate can fail: engines that break the law in one way each, and the gate that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from decodepool_worker.engine.device_draws import is_untouched
from decodepool_worker.engine.rows import Outcome, Sampled, Span
from decodepool_worker.verify.gates import GATES, GateResult, run_gates, run_long_gate
from decodepool_worker.verify.lab import CONTEXT_TOKENS, SESSIONS, STREAM_LENGTHS, BrokenGate, Lab
from decodepool_worker.verify.session_gates import DRAWS
from numpy.typing import NDArray

from tests.sessions.checking_engine import NAN_TOKEN, BesideEngine, CheckingEngine


class Mutant(CheckingEngine):
    """A sound engine so far; it has logits of its own, so that a fault may be put into them."""

    def __init__(self) -> None:
        super().__init__(page_count=2 * SESSIONS * CONTEXT_TOKENS // 64, slot_count=SESSIONS)
        self.vocabulary_size = NAN_TOKEN  # no stream shall have it

    def logits(self, slot: int) -> NDArray[np.float32]:
        return super().logits(slot)[:NAN_TOKEN]

    def nudge(self, slot: int | None, element: int = 11) -> None:
        """Change the last bit of one logit."""
        if slot is not None:
            row = self._logits[slot].view(np.uint32)
            row[element] ^= 1


class DependsOnWidth(Mutant):
    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        outcomes = super().step(spans)
        if sum(len(span.tokens) for span in spans) == 13:
            self.nudge(spans[-1].slot)
        return outcomes


class DependsOnChunk(Mutant):
    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        outcomes = super().step(spans)
        for span in spans:
            if len(span.tokens) == 7:
                self.nudge(span.slot)
        return outcomes


class DependsOnCompany(Mutant):
    """A decode row is off where another session's chunk is in the step."""

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        outcomes = super().step(spans)
        rows = sorted(len(span.tokens) for span in spans)
        if rows[0] == 1 and rows[-1] == 64:
            self.nudge(next(span.slot for span in spans if len(span.tokens) == 1))
        return outcomes


class ForgetsPartOfAPage(Mutant):
    def copy_page(self, source: int, target: int) -> None:
        super().copy_page(source, target)
        self._pages[target, 40] = 0


class ForgetsToCopyLogits(Mutant):
    def copy_logits(self, source: int, target: int) -> None:
        pass


class ReadsBeyondItsPosition(Mutant):
    """What an earlier tenant left in a page shows."""

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        outcomes = super().step(spans)
        for span in spans:
            end = span.position + len(span.tokens)
            if span.tokens and end % 64 and self._pages[span.pages[end // 64], end % 64] > 0:
                self.nudge(span.slot)
        return outcomes


class DrawsByRow(Mutant):
    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        return [
            replace(outcome, token=(outcome.token + 1) % 90) if isinstance(outcome, Sampled) and index else outcome
            for index, outcome in enumerate(super().step(spans))
        ]


class DrawsByCall(Mutant):
    """Draws depend on how often this engine has drawn."""

    draws = 0

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        turned = []
        for span in spans:
            if span.draw is not None and span.draw.sampling.temperature > 0:
                self.draws += 1
                turned.append(replace(span, draw=replace(span.draw, seed=self.draws)))
            else:
                turned.append(span)
        return super().step(turned)


class Beside(Mutant, BesideEngine):
    """A sound one too, whose steps begin before the ones ahead are read."""


class FollowsAnotherToken(Beside):
    """A row that follows does not have the token that was drawn."""

    def _known(self, span: Span) -> Span:
        known = super()._known(span)
        return replace(known, tokens=[(known.tokens[0] + 1) % NAN_TOKEN]) if span.follows else known


class DrawsOtherwiseOnItsDevice(Beside):
    """What the process need not draw is drawn by another program, always the same one."""

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        return super().step([self._turned(span) for span in spans])

    def _turned(self, span: Span) -> Span:
        if span.draw is None or not is_untouched(span.draw):
            return span
        return replace(span, draw=replace(span.draw, seed=span.draw.seed ^ 1))


class FailsAtADraw(Mutant):
    """It raises once it has drawn so often from raw logits alone."""

    draws = 0

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        drawn = [span.draw for span in spans if span.draw is not None and span.draw.sampling.temperature > 0]
        self.draws += sum(map(is_untouched, drawn))
        self.broken = self.draws == 4 * DRAWS + 3
        return super().step(spans)


class ForgetsTheSecondGroup(Mutant):
    """A chunk that begins past 512 tokens is off; rows of one token are not."""

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        outcomes = super().step(spans)
        for span in spans:
            if span.position >= 512 and len(span.tokens) > 1:
                self.nudge(span.slot)
        return outcomes


class ForgetsWithinALongStep(Mutant):
    """A row is off that is neither the last of its prompt nor in a short step."""

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        outcomes = super().step(spans)
        for span in spans:
            if (
                sum(len(each.tokens) for each in spans) == sum(STREAM_LENGTHS)
                and span.position + len(span.tokens) == 90
            ):
                self.nudge(span.slot)
        return outcomes


def first_failure(engine: Mutant) -> GateResult | None:
    return next((result for result in run_gates(Lab(engine)) if not result.equal), None)


@pytest.mark.parametrize("sound", [Mutant, Beside])
def test_a_sound_engine_passes_every_gate(sound: type[Mutant]) -> None:
    results = list(run_gates(Lab(sound())))
    assert [result.name for result in results] == [gate.name for gate in GATES]
    assert all(result.equal and result.rows and result.bytes for result in results)


def test_seeded_draws_run_an_engine_whose_steps_overlap_as_it_serves() -> None:
    engine = Beside()
    list(run_gates(Lab(engine)))
    assert engine.most_under_way == 2


@pytest.mark.parametrize(
    ("mutant", "gate"),
    [
        (DependsOnWidth, "steps of 13 rows"),
        (DependsOnChunk, "chunks of 7 tokens"),
        (ForgetsWithinALongStep, "whole prompts"),
        (DependsOnCompany, "chunks beside decode rows"),
        (ForgetsPartOfAPage, "steps of 2 rows"),
        (ForgetsToCopyLogits, "forks"),
        (ReadsBeyondItsPosition, "steps of 2 rows"),
        (DrawsByRow, "forks"),
        (DrawsByCall, "seeded draws"),
        (FollowsAnotherToken, "seeded draws"),
        (DrawsOtherwiseOnItsDevice, "seeded draws"),
    ],
)
def test_an_engine_that_breaks_the_law_fails_the_gate_for_it(mutant: type[Mutant], gate: str) -> None:
    failure = first_failure(mutant())
    assert failure is not None
    assert failure.name == gate


def test_a_difference_names_row_and_element_and_both_values() -> None:
    failure = first_failure(DependsOnWidth())
    assert failure is not None
    assert failure.difference is not None
    assert failure.difference.startswith("row 12 of 13, after ")
    assert "logit 11 is " in failure.difference
    assert failure.difference.endswith("; 1 of 96 differ")


def test_a_negative_zero_is_a_difference() -> None:
    lab = Lab(Mutant())
    zero: NDArray[np.float32] = np.zeros(3, np.float32)
    lab.witness.compare([1], zero, "first")
    lab.witness.compare([1], -zero, "row 0")
    assert (
        lab.witness.difference
        == "row 0, after 1 tokens: logit 0 is -0.0 (0x80000000), not 0.0 (0x00000000); 3 of 3 differ"
    )


def test_an_engine_too_small_for_the_gates_is_told() -> None:
    with pytest.raises(BrokenGate, match="the gates need 64 slots"):
        Lab(CheckingEngine(page_count=8, slot_count=4))


def test_an_engine_that_fails_is_no_pass() -> None:
    engine = Mutant()
    lab = Lab(engine)
    lab.reference()
    engine.broken = True
    with pytest.raises((BrokenGate, RuntimeError), match="illegal memory access"):
        list(run_gates(lab))


def test_an_engine_that_fails_before_a_stream_is_cut_off_is_told() -> None:
    with pytest.raises(BrokenGate, match="illegal memory access"):
        list(run_gates(Lab(FailsAtADraw())))


@pytest.mark.parametrize("mutant", [Mutant, ForgetsTheSecondGroup], ids=["sound", "forgetful"])
def test_a_stream_past_a_group_of_pages_is_held_to_the_law_too(mutant: type[Mutant]) -> None:
    result = run_long_gate(mutant())
    assert result.rows > 40
    assert (result.difference is None) == (mutant is Mutant)
    assert result.equal or "row 6 of 7, after 519 tokens" in str(result.difference)
