"""The engine on a GPU: the kernels' graphs run the rows, find each one's best token and draw; few are drawn here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from decodepool_kernels.cuda.backend import CudaBackend, Settings
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.draws import DeviceDraw
from decodepool_kernels.cuda.pages import KV_BITS, KvPages
from decodepool_kernels.cuda.records import Weights
from decodepool_kernels.graph import Graph
from decodepool_sizing.capacity import CapacityPlan
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.kv import KVType
from decodepool_sizing.kv import pages as pages_of
from decodepool_sizing.shape import ModelShape
from numpy.typing import NDArray

from decodepool_worker.engine.device_sampling import TOP_P_BITS, draw_as_device, least_weight, top_p_share
from decodepool_worker.engine.drawing import Drawers
from decodepool_worker.engine.gpu_report import GpuReport
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Outcome, Sampled, Span


def check_kv_type(kv_type: KVType) -> None:
    """Raise BadModelFile for keys and values that the CUDA kernels do not keep."""
    if kv_type not in KV_BITS:
        raise BadModelFile(f"kv type {kv_type}: the CUDA engine keeps {' or '.join(KV_BITS)}")


class CudaEngine:
    """Holds a model's weights, pages and logits rows on a GPU; all of the plan is allocated, and every graph captured,
    once this returns.
    """

    def __init__(
        self,
        gpu: Gpu,
        graph: Graph,
        weights: Weights,
        shape: ModelShape,
        plan: CapacityPlan,
        *,
        threads: int,
        settings: Settings | None = None,
    ) -> None:
        check_kv_type(plan.kv_type)
        heads = [(layer.kv_head_count, layer.key_length) for layer in shape.layers]
        self._gpu = gpu
        self._pages = KvPages(gpu, heads, plan.page_count, plan.kv_type.value)
        self._backend = CudaBackend(
            gpu,
            graph,
            weights,
            self._pages,
            vocabulary_size=shape.vocabulary_size,
            slots=plan.sessions,
            max_rows=plan.max_step_rows,
            table_width=pages_of(plan.context_tokens),
            settings=settings or Settings(),
        )
        self._drawers = Drawers(threads, draw_as_device)
        self.page_count = plan.page_count
        self.slot_count = plan.sessions
        self.max_step_rows = plan.max_step_rows
        self.vocabulary_size = shape.vocabulary_size

    @property
    def report(self) -> GpuReport:
        """What measures steps on this GPU."""
        return GpuReport(self._gpu, self._backend)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of intermediate results and of step inputs."""
        return self._backend.workspace_bytes

    @property
    def sessions_bytes(self) -> int:
        """Bytes of pages and resident logits rows."""
        return self._pages.size_bytes + self._backend.logits_bytes

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        """Evaluate every row, then draw where asked."""
        return self.begin(spans)()

    def begin(self, spans: Sequence[Span]) -> Callable[[], list[Outcome]]:
        """Start a step; return what waits for its end and gives what `step` gives. No other step before that."""
        evaluated = [span for span in spans if span.tokens]
        draws = [device_draw(span.draw) for span in evaluated if span.slot is not None]
        answers = self._backend.begin(evaluated, draws)
        return lambda: self._drawn(spans, answers())

    def _drawn(self, spans: Sequence[Span], answers: NDArray[np.int32]) -> list[Outcome]:
        """Return what was drawn: on the device where it could, the rest from here, by the same program."""
        found = iter(answers.tolist())
        answered = [next(found) if span.tokens and span.slot is not None else None for span in spans]
        outcomes = [_found(span.draw, answer) for span, answer in zip(spans, answered, strict=True)]
        rest = [index for index, span in enumerate(spans) if span.draw and outcomes[index] is None]
        jobs = [(self.logits(slot), draw) for slot, draw in (_asked(spans[index]) for index in rest)]
        for index, outcome in zip(rest, self._drawers.draw(jobs), strict=True):
            outcomes[index] = outcome
        return outcomes

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page of every layer; ValueError for one that is not there."""
        for page in (source, target):
            if not 0 <= page < self.page_count:
                raise ValueError(f"page {page} of {self.page_count}")
        self._backend.copy_page(source, target)

    def logits(self, slot: int) -> NDArray[np.float32]:
        """Return a copy of a slot's resident logits; ValueError for one that is not there."""
        self._check_slot(slot)
        return self._backend.logits(slot)

    def copy_logits(self, source: int, target: int) -> None:
        """Copy one resident logits row; ValueError for one that is not there."""
        self._check_slot(source)
        self._check_slot(target)
        self._backend.copy_logits(source, target)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.slot_count:
            raise ValueError(f"slot {slot} of {self.slot_count}")

    def close(self) -> None:
        """Give the GPU back and end the threads."""
        self._backend.close()
        self._drawers.close()


def _asked(span: Span) -> tuple[int, Draw]:
    """Return a span's slot and draw."""
    if span.slot is None or span.draw is None:
        raise ValueError("a draw needs a slot")
    return span.slot, span.draw


def _found(draw: Draw | None, answer: list[int] | None) -> Outcome:
    """Return the outcome of a draw that the device made, None for any other. `answer` is the best token, its logit's
    bits, and the token drawn where one was.
    """
    if draw is None or answer is None or not is_untouched(draw):
        return None
    logit = float(np.int32(answer[1]).view(np.float32))
    if math.isfinite(logit):
        return Sampled(answer[2] if draw.sampling.temperature > 0 else answer[0])
    return NonFiniteLogits(f"logits of token {draw.position} are not finite: {logit} at id {answer[0]}")


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
