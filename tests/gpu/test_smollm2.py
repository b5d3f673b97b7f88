"""A real model on the GPU: greedy tokens of the float reference, how far the logits are from it, and every gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_worker.verify.gates import GATES, run_gates
from decodepool_worker.verify.lab import Lab

from tests.gpu.test_engine import MOST_KL, kl, opened
from tests.tiny.catalogue import all_logits
from tests.tiny.reference import Reference

pytestmark = [pytest.mark.gpu, pytest.mark.model, pytest.mark.usefixtures("gpu")]

GOLDEN = json.loads((Path(__file__).parents[1] / "engine/golden_smollm2.json").read_text())
PROMPTS: list[dict[str, Any]] = GOLDEN["prompts"]


def test_greedy_tokens_and_distributions_are_those_of_the_float_reference(smollm2: Path) -> None:
    reference, divergences, rows = Reference(smollm2), [], []
    with opened(smollm2) as engine:
        for case in PROMPTS:
            tokens = [*case["tokens"], *case["greedy"][:-1]]
            found = all_logits(engine, tokens)
            assert found[len(case["tokens"]) - 1 :].argmax(-1).tolist() == case["greedy"]
            divergences.append(kl(reference.logits(tokens), found))
            rows.append(len(tokens))
    assert float(np.average(divergences, weights=rows)) < MOST_KL


def test_every_gate_holds(smollm2: Path) -> None:
    with opened(smollm2) as engine:
        results = list(run_gates(Lab(engine)))
    assert [result.difference for result in results] == [None] * len(GATES)
