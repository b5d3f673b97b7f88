"""A few tiny models launch every kernel that a GPU can be asked for: what sanitizers run, at the size they can bear.

`python -m bench.gpu.sanitizer` runs these tests under compute-sanitizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import argmax, backend, cluster_cuts, draws, products, programs
from decodepool_kernels.cuda.device import Function, Gpu, Launch
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.registry import KERNELS
from decodepool_sizing.kv import KVType
from decodepool_worker.engine import open_cuda
from decodepool_worker.engine.open import Wanted
from decodepool_worker.engine.open_cuda import planned_on
from decodepool_worker.engine.rows import Draw, Sampled, Sampling, Span

from tests.gpu.test_engine import opened
from tests.tiny.models import Tiny, write

WIDTHS, ROWS = (2, 12), 32
"""Rows for which steps are prepared, and the most of a step: one program of products each."""
ON_GPU = Wanted(192, 4, device="cuda", graphs=False)
Seam = tuple[ModuleType, str, object]
DRAWN_ALONE: Seam = (draws, "DRAW_CLUSTER_CAPABILITY", 0)
SHARED_OUT: Seam = (argmax, "ARGMAX_CLUSTER_CAPABILITY", 0)
NO_WARPGROUPS: Seam = (programs, "WARPGROUP_CAPABILITY", 0)
ANY_GPU: Sequence[Seam] = [
    (programs, capability, 0) for capability in ("WARPGROUP_CAPABILITY", "FEW_CAPABILITY", "PRODUCT_CLUSTER_CAPABILITY")
]
CLUSTERED: Seam = (cluster_cuts, "LEAST_BUSY", {1: 2.0, 2: 0.0})
"""Two tiles of rows go to clusters however few units there are, one tile never."""
HANDED_ON: Seam = (products, "FEWEST_SLICES", 0)

WITHOUT_PRODUCTS = frozenset(
    {"repack", "bring", "embed", "rope_table", "attention", "attention_wide", "argmax_cluster"}
)
EVERYWHERE = WITHOUT_PRODUCTS | {"matmul"}
K_QUANTS = WITHOUT_PRODUCTS | {"matmul_few", "matmul_cluster", "matmul_warpgroup"}
FUSED = frozenset({"norm_quantise", "rope_append", "fold_quantise", "fold_cluster", "swiglu_quantise"})
PLAIN = frozenset({"rms_norm", "rope", "append", "attention_fold", "swiglu", "add", "gather"})


@dataclass(frozen=True)
class Case:
    """A model, how it is run, and kernels that it launches."""

    tiny: Tiny
    kernels: frozenset[str]
    wanted: Wanted = ON_GPU
    seams: Sequence[Seam] = (DRAWN_ALONE, CLUSTERED)


def _tiny(weights: str, architecture: str = "llama", **own: Any) -> Tiny:
    return Tiny(architecture, weights, head_length=64, **own)


IN_CLUSTERS = "drawn in clusters"
CASES = {
    "fused": Case(_tiny("Q8_0"), EVERYWHERE | FUSED | {"matmul_cluster", "matmul_warpgroup", "fold_slices", "draw"}),
    IN_CLUSTERS: Case(_tiny("Q4_0"), EVERYWHERE | FUSED | {"draw_cluster"}, seams=()),
    "minima, sums handed on": Case(_tiny("Q4_K"), K_QUANTS | FUSED, seams=[HANDED_ON, DRAWN_ALONE, CLUSTERED]),
    "scales of 16, q8_0 pages": Case(
        _tiny("Q6_K", "qwen3", head_norms=True),
        K_QUANTS | FUSED | {"rms_norm"},
        replace(ON_GPU, kv_type=KVType.Q8_0),
    ),
    "three planes, biases": Case(
        _tiny("BF16", "qwen2", qkv_bias=True), EVERYWHERE | FUSED | {"matmul_warpgroup", "fold_slices"}
    ),
    "groups that are one chain, on any GPU": Case(
        _tiny("Q2_K"), EVERYWHERE | FUSED | {"matmul_wide", "fold_slices"}, seams=[*ANY_GPU, DRAWN_ALONE]
    ),
    "no wgmma": Case(
        _tiny("Q4_1"),
        (EVERYWHERE - {"argmax_cluster"}) | FUSED | {"argmax", "matmul_wide", "fold_slices"},
        seams=[NO_WARPGROUPS, DRAWN_ALONE, SHARED_OUT],
    ),
    "one operation a launch": Case(
        _tiny("F16"),
        (EVERYWHERE - {"attention_wide"}) | PLAIN | {"quantise", "matmul_warpgroup", "fold_slices"},
        replace(ON_GPU, fused=False),
    ),
    "the same, q8_0 pages": Case(
        _tiny("Q5_1"),
        (EVERYWHERE - {"attention_wide"}) | PLAIN | {"quantise"},
        replace(ON_GPU, fused=False, kv_type=KVType.Q8_0),
    ),
    "f32": Case(_tiny("F32"), frozenset({"embed_f32", "matmul_f32", "rope_append", "attention", "swiglu", "gather"})),
}
OF_NO_MODEL = frozenset({"read_words"})
"""Held to its formula in test_sessions.py, and run by itself."""


def test_the_cases_launch_every_kernel_there_is() -> None:
    assert frozenset.union(OF_NO_MODEL, *(case.kernels for case in CASES.values())) == frozenset(KERNELS)


def test_what_is_fused_is_exact_against_operations_that_a_step_of_one_a_launch_is_made_of() -> None:
    left, plain = set(FUSED), set[str]()
    while left:
        kernel = left.pop()
        twins = set(KERNELS[kernel].twins)
        assert twins, kernel
        plain |= twins - FUSED
        left |= twins & FUSED
    assert plain <= CASES["one operation a launch"].kernels


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the kernels that are launched while a test runs."""
    names, seen = dict[int, str](), set[str]()
    function_of, launch_it = KernelLibrary.function, Gpu.launch

    def named(library: KernelLibrary, name: str, *rest: Any) -> Function:
        found = function_of(library, name, *rest)
        names[id(found)] = name
        return found

    def noted(gpu: Gpu, launch: Launch) -> None:
        seen.add(names[id(launch.function)])
        launch_it(gpu, launch)

    monkeypatch.setattr(KernelLibrary, "function", named)
    monkeypatch.setattr(Gpu, "launch", noted)
    return seen


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_prompt_beside_others_has_the_bytes_of_its_tokens_alone(
    gpu: Gpu, name: str, launched: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, path = CASES[name], tmp_path / "tiny.gguf"
    write(case.tiny, path)
    monkeypatch.setattr(backend, "WIDTHS", WIDTHS)
    monkeypatch.setattr(open_cuda, "planned_on", lambda *of: replace(planned_on(*of), max_step_rows=ROWS))
    for check in ("require_same_bits", "require_arithmetic"):  # steps of every width: minutes, under a sanitizer
        monkeypatch.setattr(open_cuda, check, lambda *_: None)
    for module, seam, value in case.seams:
        monkeypatch.setattr(module, seam, value)
    draw = Draw(Sampling(temperature=0.8), 5, 70, [])
    prompt = [(i * 31 + i * i) % 96 for i in range(72)]
    with opened(path, case.wanted) as engine:
        engine.step([Span([0, 1], 0, prompt[:32])])
        engine.step([Span([0, 1], 32, prompt[32:64])])
        (drawn,) = engine.step([Span([0, 1], 64, prompt[64:70], 0, draw)])
        engine.step([Span([2, 3], 0, prompt[:12])])  # few rows, and nobody's logits wanted
        engine.step([Span([2, 3], 0, prompt[:30]), Span([0, 1], 70, prompt[70:], 0)])
        for first, past in ((30, 60), (60, 70), (70, 71), (71, 72)):
            engine.step([Span([2, 3], first, prompt[first:past], 1)])
        assert isinstance(drawn, Sampled)
        assert engine.logits(1).tobytes() == engine.logits(0).tobytes()
    missing = {kernel for kernel in case.kernels if KERNELS[kernel].only in {None, _target(gpu)}} - launched
    assert not missing


def _target(gpu: Gpu) -> str:
    return "sm_90a" if gpu.capability == 90 else f"sm_{gpu.capability}"
