"""The engine on CPU cores: the kernels' program runs the rows, the sampler draws from the logits it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from decodepool_kernels.cpu.backend import CpuBackend
from decodepool_kernels.cpu.lower import Weights
from decodepool_kernels.cpu.packing import PackedMatrix
from decodepool_kernels.cpu.pages import KvPages
from decodepool_kernels.graph import Graph
from decodepool_sizing.capacity import CapacityPlan
from decodepool_sizing.kv import pages as pages_of
from decodepool_sizing.shape import ModelShape
from decodepool_sizing.workspace import DRAWING_THREADS
from numpy.typing import NDArray

from decodepool_worker.engine.drawing import Drawers
from decodepool_worker.engine.rows import Outcome, Span


class CpuEngine:
    """Holds a model's weights, pages and logits rows; all of the plan is allocated and resident once this returns."""

    def __init__(
        self,
        graph: Graph,
        *,
        matrices: Mapping[str, PackedMatrix],
        vectors: Mapping[str, NDArray[np.float32]],
        shape: ModelShape,
        plan: CapacityPlan,
        threads: int,
    ) -> None:
        heads = [(layer.kv_head_count, layer.key_length) for layer in shape.layers]
        self._pages = KvPages(plan.kv_type.value, heads, plan.page_count)
        self._backend = CpuBackend(
            graph,
            Weights(matrices, vectors),
            self._pages,
            vocabulary_size=shape.vocabulary_size,
            slots=plan.sessions,
            max_rows=plan.max_step_rows,
            table_width=pages_of(plan.context_tokens),
            threads=threads,
        )
        self._backend.make_ready()
        self._drawers = Drawers(min(threads, DRAWING_THREADS))
        self.page_count = plan.page_count
        self.slot_count = plan.sessions
        self.max_step_rows = plan.max_step_rows
        self.vocabulary_size = shape.vocabulary_size

    @property
    def workspace_bytes(self) -> int:
        """Bytes of intermediate results and scratch."""
        return self._backend.workspace_bytes

    @property
    def sessions_bytes(self) -> int:
        """Bytes of pages and resident logits rows."""
        return self._pages.size_bytes + self._backend.logits_bytes

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        """Evaluate every row, then draw where asked."""
        self._backend.run(spans)
        jobs = [(self.logits(span.slot), span.draw) for span in spans if span.draw and span.slot is not None]
        drawn = iter(self._drawers.draw(jobs))
        return [next(drawn) if span.draw and span.slot is not None else None for span in spans]

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page of every layer; ValueError for one that is not there."""
        for page in (source, target):
            if not 0 <= page < self.page_count:
                raise ValueError(f"page {page} of {self.page_count}")
        self._pages.copy(source, target)

    def logits(self, slot: int) -> NDArray[np.float32]:
        """Return a slot's resident logits, a view until the next step; ValueError for one that is not there."""
        if not 0 <= slot < self.slot_count:
            raise ValueError(f"slot {slot} of {self.slot_count}")
        return self._backend.logits(slot)

    def copy_logits(self, source: int, target: int) -> None:
        """Copy one resident logits row."""
        self.logits(target)[:] = self.logits(source)

    def close(self) -> None:
        """End the threads."""
        self._backend.close()
        self._drawers.close()
