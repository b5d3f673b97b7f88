"""A real model: greedy tokens of the float reference, and how far the logits are from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decodepool_sizing.kv import KVType
from numpy.typing import NDArray

from tests.tiny.catalogue import all_logits, open_tiny
from tests.tiny.reference import Reference

GOLDEN = json.loads(Path(__file__).with_name("golden_smollm2.json").read_text())
PROMPTS: list[dict[str, Any]] = GOLDEN["prompts"]
MEAN_KL = {KVType.F32: 1e-6, KVType.F16: 5e-6, KVType.Q8_0: 2e-3}
"""Nats a token; 9e-8, 6e-7 and 5e-4 were measured. The project's own promise, for f16, is 1e-4."""

pytestmark = [pytest.mark.model, pytest.mark.slow]


def replayed(case: dict[str, Any]) -> list[int]:
    """The prompt and its greedy tokens, but for the last: after each of the latter there is one to be predicted."""
    return [*case["tokens"], *case["greedy"][:-1]]


@pytest.fixture(scope="module")
def reference_logits(smollm2: Path) -> list[NDArray[np.float64]]:
    reference = Reference(smollm2)
    return [reference.logits(replayed(case)) for case in PROMPTS]


@pytest.fixture(params=list(KVType), ids=str)
def kept(request: pytest.FixtureRequest, smollm2: Path) -> Iterator[tuple[KVType, list[NDArray[np.float32]]]]:
    """A type of keys and values, and the engine's logits with it."""
    with open_tiny(smollm2, kv_type=request.param) as engine:
        yield request.param, [all_logits(engine, replayed(case)) for case in PROMPTS]


def test_greedy_tokens_and_distributions_are_those_of_the_float_reference(
    kept: tuple[KVType, list[NDArray[np.float32]]], reference_logits: list[NDArray[np.float64]]
) -> None:
    kv_type, found = kept
    divergences = []
    for case, ours, theirs in zip(PROMPTS, found, reference_logits, strict=True):
        greedy = ours[len(case["tokens"]) - 1 :].argmax(-1).tolist()
        assert kv_type is KVType.Q8_0 or greedy == case["greedy"]
        divergences.append(divergence(theirs, ours.astype(np.float64)))
    assert float(np.concatenate(divergences).mean()) < MEAN_KL[kv_type]


def test_the_reference_itself_draws_the_greedy_tokens(reference_logits: list[NDArray[np.float64]]) -> None:
    for case, logits in zip(PROMPTS, reference_logits, strict=True):
        assert logits[len(case["tokens"]) - 1 :].argmax(-1).tolist() == case["greedy"]


def divergence(p_logits: NDArray[np.float64], q_logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """KL(p || q) in nats, of each row."""
    p, q = (row - np.logaddexp.reduce(row, -1, keepdims=True) for row in (p_logits, q_logits))
    result: NDArray[np.float64] = (np.exp(p) * (p - q)).sum(-1)
    return result
