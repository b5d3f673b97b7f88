"""What a GPU is asked to draw, and what its answers mean."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_worker.engine.device_draws import asked_of, device_draw, device_outcomes, is_drawn_on_device
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Sampled, Sampling, Span

GREEDY, HOT = Sampling(0.0), Sampling(0.7, top_k=5, top_p=0.5, min_p=0.25)
TOUCHED = (
    Sampling(0.0, logit_bias=((1, 1.0),)),
    Sampling(0.0, repetition_penalty=1.1),
    Sampling(1.0, presence_penalty=0.1),
    Sampling(1.0, frequency_penalty=0.1),
)


def draw(sampling: Sampling, top_logprobs: int | None = None) -> Draw:
    return Draw(sampling, 2**40, 9, [1], top_logprobs)


def bits(*logits: float) -> list[int]:
    return [int(value) for value in np.array(logits, np.float32).view(np.int32)]


def test_each_draw_goes_where_it_can_be_made_and_answers_come_back_in_place() -> None:
    spans = [
        Span([0], 0, [1, 2]),  # prefill: no answer
        Span([1], 5, [1], 0, draw(GREEDY)),
        Span([2], 5, [1], 1),  # logits kept, nothing drawn
        Span([3], 5, [], 2, draw(GREEDY)),  # from resident logits
        Span([4], 5, [1], 3, draw(HOT)),
        Span([5], 5, [1], 4, draw(GREEDY)),
        Span([6], 5, [1], 5, draw(GREEDY, 3)),
    ]
    asked = asked_of(spans)
    assert asked.here == [3, 6]
    answers = np.array([[10, 0, -1], [11, 0, -1], [12, 0, 77], [13, 0, -1], [14, 0, -1]], np.int32)
    answers[:, 1] = bits(1, 2, 3, np.nan, 5)
    outcomes = device_outcomes(spans, asked, answers)
    assert outcomes[:5] == [None, Sampled(10), None, None, Sampled(77)]
    assert outcomes[5] == NonFiniteLogits("logits of token 9 are not finite: nan at id 13")
    assert outcomes[6] is None


@pytest.mark.parametrize("sampling", TOUCHED, ids=str)
def test_what_the_device_cannot_draw_is_drawn_here(sampling: Sampling) -> None:
    assert device_draw(draw(sampling)) is None
    assert asked_of([Span([0], 0, [1], 0, draw(sampling))]).here == [0]


def test_a_step_of_which_nothing_is_asked_has_no_answers() -> None:
    spans = [Span([0], 0, [1, 2])]
    assert device_outcomes(spans, asked_of(spans), np.empty((0, 2), np.int32)) == [None]


def test_the_device_is_told_integers() -> None:
    told = device_draw(draw(HOT))
    assert told is not None
    assert (told.temperature, told.seed, told.position, told.top_k) == (0.7, 2**40, 9, 5)
    assert (told.share, told.least) == (2**31, 2**42)
    assert device_draw(draw(Sampling(1.0))).share is None  # type: ignore[union-attr]
    assert device_draw(draw(GREEDY)) is None
    assert device_draw(None) is None


DRAWN_HERE = {
    "from what is resident": Span([0], 9, [], 0, draw(GREEDY)),
    "with log-probabilities": Span([0], 8, [1], 0, draw(GREEDY, 0)),
    **{f"{sampling}": Span([0], 8, [1], 0, draw(sampling)) for sampling in TOUCHED},
}


@pytest.mark.parametrize("span", DRAWN_HERE.values(), ids=DRAWN_HERE)
def test_a_token_that_is_drawn_here_is_not_known_to_the_device(span: Span) -> None:
    assert not is_drawn_on_device(span)


@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "hot"])
def test_every_other_token_is(sampling: Sampling) -> None:
    assert is_drawn_on_device(Span([0], 8, [1], 0, draw(sampling)))
