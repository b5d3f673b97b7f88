"""How far the engine is from the real numbers, on models whose logits have a deviation of 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decodepool_sizing.kv import KVType

from tests.tiny.catalogue import VARIANTS, WEIGHT_TYPES, all_logits, open_tiny
from tests.tiny.models import VOCABULARY, Tiny
from tests.tiny.reference import Reference

TOKENS = [(i * 37 + i * i) % VOCABULARY for i in range(150)]
"""Into a third page."""

F32_TOLERANCE = 2e-5
"""Products and sums of 24 bits: 4e-6 was the worst seen."""

QUANTISED_TOLERANCE = 1e-3
"""Activations as 16-bit integers are off by 2^-16 of their block's largest: 3e-4 was the worst seen."""

KV_TOLERANCES = {KVType.F16: 5e-3, KVType.Q8_0: 0.1}
"""Keys and values off by 2^-12 of themselves, or 2^-8 of the largest of 32: 3e-3 and 4e-2 were the worst seen."""

MakeFile = Callable[[Tiny], Path]


def distance(tiny: Tiny, path: Path, kv_type: KVType = KVType.F32) -> float:
    """Return the largest difference of any logit from the binary64 reference."""
    expected = Reference(path).logits(TOKENS)
    assert 0.8 < expected.std() < 1.5
    with open_tiny(path, kv_type=kv_type) as engine:
        return float(np.abs(all_logits(engine, TOKENS) - expected).max())


@pytest.mark.parametrize("tiny", VARIANTS, ids=str)
def test_every_architecture_computes_its_formulae(tiny: Tiny, tiny_file: MakeFile) -> None:
    assert distance(tiny, tiny_file(tiny)) < F32_TOLERANCE


@pytest.mark.parametrize("tiny", WEIGHT_TYPES, ids=str)
def test_every_type_of_weight_is_read_as_gguf_reads_it(tiny: Tiny, tiny_file: MakeFile) -> None:
    assert distance(tiny, tiny_file(tiny)) < QUANTISED_TOLERANCE


@pytest.mark.parametrize("kv_type", KV_TOLERANCES, ids=str)
@pytest.mark.parametrize("tiny", [VARIANTS[1], VARIANTS[-1], WEIGHT_TYPES[-1]], ids=str)
def test_narrow_keys_and_values_cost_what_their_bits_say(tiny: Tiny, kv_type: KVType, tiny_file: MakeFile) -> None:
    wide = replace(tiny, head_length=max(tiny.head_length, 32))  # q8_0 holds whole blocks of 32
    found = distance(wide, tiny_file(wide), kv_type)
    assert F32_TOLERANCE < found < KV_TOLERANCES[kv_type]


@pytest.mark.parametrize(
    ("tiny", "otherwise"),
    [
        (VARIANTS[0], {"neighbours": False}),
        (VARIANTS[0], {"epsilon": 1e-4}),
        (VARIANTS[2], {"factor": 4.01}),
        (VARIANTS[3], {"scaling": "linear"}),
        (VARIANTS[3], {"original_context": 4096}),
    ],
    ids=str,
)
def test_the_tolerance_would_notice(tiny: Tiny, otherwise: dict[str, Any], tiny_file: MakeFile) -> None:
    reference = Reference(tiny_file(tiny))
    right = reference.logits(TOKENS)
    reference.sizes = replace(reference.sizes, **otherwise)
    assert np.abs(reference.logits(TOKENS) - right).max() > F32_TOLERANCE
