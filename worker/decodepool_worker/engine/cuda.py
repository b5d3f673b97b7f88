"""The engine on a GPU: the kernels' graphs run the rows, find each one's best token and draw; few are drawn here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from decodepool_kernels.cuda.backend import CudaBackend, Settings
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.pages import KV_BITS, KvPages
from decodepool_kernels.cuda.records import Weights
from decodepool_kernels.graph import Graph
from decodepool_sizing.capacity import CapacityPlan
from decodepool_sizing.errors import BadDemand
from decodepool_sizing.kv import KVType
from decodepool_sizing.kv import pages as pages_of
from decodepool_sizing.shape import ModelShape
from numpy.typing import NDArray

from decodepool_worker.engine.device_draws import Asked, asked_of, device_draw, device_outcomes, is_drawn_on_device
from decodepool_worker.engine.device_sampling import draw_as_device
from decodepool_worker.engine.drawing import Drawers
from decodepool_worker.engine.gpu_report import GpuReport
from decodepool_worker.engine.rows import Draw, Outcome, Span


def check_kv_type(kv_type: KVType) -> None:
    """Raise BadDemand for keys and values that the CUDA kernels do not keep."""
    if kv_type not in KV_BITS:
        raise BadDemand(f"kv type {kv_type}: the CUDA engine keeps {' or '.join(KV_BITS)}")


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
        settings = settings or Settings()
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
            settings=settings,
        )
        self._drawers = Drawers(threads, draw_as_device)
        self._is_chained = settings.chained
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
        """Start a step, or have it start when the one under way ends; return what waits for it and gives what `step`
        gives.
        """
        evaluated = [span for span in spans if span.tokens]
        draws = [device_draw(span.draw) for span in evaluated if span.slot is not None]
        answers = self._backend.begin(evaluated, draws)
        asked = asked_of(spans)
        return lambda: self._drawn(spans, asked, answers())

    def can_be_followed(self, spans: Sequence[Span]) -> bool:
        """Tell whether the device makes every draw of a step, and so knows the tokens before they are read."""
        return self._is_chained and all(span.draw is None or is_drawn_on_device(span) for span in spans)

    def _drawn(self, spans: Sequence[Span], asked: Asked, answers: NDArray[np.int32]) -> list[Outcome]:
        """Return what was drawn: on the device where it could, the rest from here, by the same program."""
        outcomes = device_outcomes(spans, asked, answers)
        if asked.here:
            jobs = [(self.logits(slot), draw) for slot, draw in (_asked(spans[index]) for index in asked.here)]
            for index, outcome in zip(asked.here, self._drawers.draw(jobs), strict=True):
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
