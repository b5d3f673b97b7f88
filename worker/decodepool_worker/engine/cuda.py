"""The engine on a GPU: the kernels' graphs run the rows and find each one's best token; the sampler draws the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from decodepool_kernels.cuda.backend import CudaBackend, Settings
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.lower import Weights
from decodepool_kernels.cuda.pages import KvPages
from decodepool_kernels.graph import Graph
from decodepool_sizing.capacity import CapacityPlan
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.kv import KVType
from decodepool_sizing.kv import pages as pages_of
from decodepool_sizing.shape import ModelShape
from numpy.typing import NDArray

from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Outcome, Sampled, Span
from decodepool_worker.engine.sampling import draw_token


def check_kv_type(kv_type: KVType) -> None:
    """Raise BadModelFile for keys and values that the CUDA kernels do not keep."""
    if kv_type is not KVType.F16:
        raise BadModelFile(f"kv type {kv_type.value}: the CUDA engine keeps f16 only")


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
        settings: Settings | None = None,
    ) -> None:
        check_kv_type(plan.kv_type)
        heads = [(layer.kv_head_count, layer.key_length) for layer in shape.layers]
        self._gpu = gpu
        self._pages = KvPages(gpu, heads, plan.page_count)
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
        self.page_count = plan.page_count
        self.slot_count = plan.sessions
        self.max_step_rows = plan.max_step_rows
        self.vocabulary_size = shape.vocabulary_size

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
        best = iter(self._backend.run([span for span in spans if span.tokens]).tolist())
        return [self._draw(span, next(best) if span.tokens and span.slot is not None else None) for span in spans]

    def _draw(self, span: Span, best: list[int] | None) -> Outcome:
        if span.draw is None or span.slot is None:
            return None
        if best is not None and _is_greedy(span.draw):
            token, bits = best
            logit = float(np.int32(bits).view(np.float32))
            if math.isfinite(logit):
                return Sampled(token)
            return NonFiniteLogits(f"logits of token {span.draw.position} are not finite: {logit} at id {token}")
        return draw_token(self.logits(span.slot), span.draw)

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page of every layer."""
        self._backend.copy_page(source, target)

    def logits(self, slot: int) -> NDArray[np.float32]:
        """Return a copy of a slot's resident logits."""
        return self._backend.logits(slot)

    def copy_logits(self, source: int, target: int) -> None:
        """Copy one resident logits row."""
        self._backend.copy_logits(source, target)

    def close(self) -> None:
        """Give the GPU back."""
        self._backend.close()


def _is_greedy(draw: Draw) -> bool:
    """Tell whether the best raw logit is the draw: no bias, no penalties, no log-probabilities."""
    sampling = draw.sampling
    untouched = (
        sampling.repetition_penalty == 1
        and sampling.presence_penalty == 0
        and sampling.frequency_penalty == 0
        and not sampling.logit_bias
    )
    return sampling.temperature == 0 and untouched and draw.top_logprobs is None
