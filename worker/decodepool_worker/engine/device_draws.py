"""Which draws of a step a GPU makes, and what its answers mean. What can be found out while the step runs is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from decodepool_kernels.cuda.draws import DeviceDraw
from numpy.typing import NDArray

from decodepool_worker.engine.device_sampling import TOP_P_BITS, least_weight, top_p_share
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Outcome, Sampled, Span

BEST, LOGIT, DRAWN = range(3)
"""Columns of an answer: the best token, its logit's bits, and the token drawn where one was."""


def is_untouched(draw: Draw) -> bool:
    """Tell whether a draw is from raw logits and asks for a token alone: no bias, penalties or log-probabilities."""
    sampling = draw.sampling
    return (
        sampling.repetition_penalty == 1
        and sampling.presence_penalty == 0
        and sampling.frequency_penalty == 0
        and not sampling.logit_bias
        and draw.top_logprobs is None
    )


def is_drawn_on_device(span: Span) -> bool:
    """Tell whether the device draws a span's token. One from logits that are resident already is drawn here."""
    return span.draw is not None and span.slot is not None and bool(span.tokens) and is_untouched(span.draw)


def device_draw(draw: Draw | None) -> DeviceDraw | None:
    """Return what the device is asked for; nothing where the best token is the draw, or it is drawn here."""
    if draw is None or draw.sampling.temperature == 0 or not is_untouched(draw):
        return None
    sampling, share = draw.sampling, top_p_share(draw.sampling.top_p)
    return DeviceDraw(
        sampling.temperature,
        draw.seed,
        draw.position,
        sampling.top_k,
        None if share == 1 << TOP_P_BITS else share,
        least_weight(sampling.min_p),
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """Draws of a step: (span, row of the answers, column) of those that the device makes, and the other spans."""

    of_device: list[tuple[int, int, int]]
    here: list[int]


def asked_of(spans: Sequence[Span]) -> Asked:
    """Sort the draws of a step."""
    of_device, here, row = [], [], -1
    for index, span in enumerate(spans):
        draw = span.draw
        row += span.slot is not None and bool(span.tokens)
        if draw is not None and is_drawn_on_device(span):
            of_device.append((index, row, DRAWN if draw.sampling.temperature > 0 else BEST))
        elif draw is not None:
            here.append(index)
    return Asked(of_device, here)


def device_outcomes(spans: Sequence[Span], asked: Asked, answers: NDArray[np.int32]) -> list[Outcome]:
    """Return an outcome a span from the device's answers; None for those that it did not make."""
    outcomes: list[Outcome] = [None] * len(spans)
    values = answers.tolist()
    is_finite = np.isfinite(np.ascontiguousarray(answers[:, LOGIT]).view(np.float32)).tolist()
    for index, row, column in asked.of_device:
        outcomes[index] = Sampled(values[row][column]) if is_finite[row] else _fault(spans[index], values[row])
    return outcomes


def _fault(span: Span, answer: list[int]) -> NonFiniteLogits:
    logit, position = np.int32(answer[LOGIT]).view(np.float32), 0 if span.draw is None else span.draw.position
    return NonFiniteLogits(f"logits of token {position} are not finite: {float(logit)} at id {answer[BEST]}")
