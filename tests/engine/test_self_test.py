"""The start-up test finds a row whose bits depend on its company, and lets nothing else fail."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from decodepool_kernels.cuda.errors import GpuFault
from decodepool_worker.engine.rows import Outcome, Span
from decodepool_worker.engine.self_test import TOKENS, require_same_bits
from numpy.typing import NDArray


class Rows:
    """Logits are a function of the tokens so far; from `wrong_from` rows of a step on, the last row's are another."""

    vocabulary_size = 97

    def __init__(self, *, pages: int, slots: int, max_rows: int = 256, wrong_from: int = 10**9) -> None:
        self.page_count, self.slot_count, self.max_step_rows = pages, slots, max_rows
        self.steps: list[int] = []
        self._wrong_from = wrong_from
        self._held: dict[int, list[int]] = {}
        self._logits = np.zeros((slots, 97), np.float32)

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        rows = sum(len(span.tokens) for span in spans)
        assert rows <= self.max_step_rows
        self.steps.append(rows)
        for span in spans:
            page = self._held.setdefault(span.pages[0], [0] * 64)
            page[span.position : span.position + len(span.tokens)] = span.tokens
            if span.slot is not None:
                self._logits[span.slot] = sum(token * (i + 1) for i, token in enumerate(page)) * np.arange(97)
        if rows >= self._wrong_from:
            self._logits[min(self.slot_count, len(spans)) - 1, 5] += 1
        return [None] * len(spans)

    def copy_page(self, source: int, target: int) -> None:
        raise NotImplementedError

    def logits(self, slot: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._logits[slot]
        return row

    def copy_logits(self, source: int, target: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def test_rows_that_are_the_same_in_every_company_pass() -> None:
    engine = Rows(pages=100, slots=40)
    require_same_bits(engine, "a GPU")
    assert engine.steps == [1] * TOKENS + [2] * 8 + [4] * 4 + [8] * 2 + [16, 32, 64, 128, 256]


@pytest.mark.parametrize(("pages", "slots", "max_rows"), [(1, 1, 256), (3, 1, 256), (50, 2, 40), (50, 50, 16)])
def test_a_small_plan_is_tested_with_what_it_has(pages: int, slots: int, max_rows: int) -> None:
    engine = Rows(pages=pages, slots=slots, max_rows=max_rows)
    require_same_bits(engine, "a GPU")
    assert engine.steps[-1] == 16 * 2 ** (min(pages, max_rows // 16).bit_length() - 1)


@pytest.mark.parametrize("rows", [2, 8, 16, 64, 256])
def test_a_row_that_depends_on_its_company_is_told(rows: int) -> None:
    with pytest.raises(GpuFault, match=f"a GPU: a row has other bits among {rows} rows than alone"):
        require_same_bits(Rows(pages=100, slots=40, wrong_from=rows), "a GPU")


def test_a_device_that_computes_nothing_is_told() -> None:
    engine = Rows(pages=100, slots=40)
    engine.step = lambda spans: [None] * len(spans)  # type: ignore[method-assign]
    with pytest.raises(GpuFault, match="a GPU: every logit is the same number"):
        require_same_bits(engine, "a GPU")


def test_a_model_whose_logits_are_nan_is_not_the_devices_fault() -> None:
    engine = Rows(pages=100, slots=40)
    engine.step = lambda spans: [None] * len(spans)  # type: ignore[method-assign]
    engine.logits = lambda slot: np.full(97, np.nan, np.float32)  # type: ignore[method-assign]
    require_same_bits(engine, "a GPU")
