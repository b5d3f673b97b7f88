"""The plan's workspace of a GPU beside what the engine takes for a step. No GPU needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, permutations

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.backend import WIDTHS
from decodepool_kernels.cuda.formats import REPACKED, repacked_kind
from decodepool_kernels.cuda.packing import NO_SUMS, MatrixKind
from decodepool_sizing.devices import ANY_CORES, MARGIN_DIVISOR, WHOLE_HOPPER, GpuCores
from decodepool_sizing.gpu_sums import PREPARED_ROWS
from decodepool_sizing.gpu_workspace import SHARES_BYTES, gpu_workspace_bytes
from decodepool_sizing.gpus import CORES as PLANNED_CORES
from decodepool_sizing.header import Header
from decodepool_sizing.matrix_types import launches_of, rounding_of, step_types
from decodepool_sizing.shape import read_shape
from decodepool_sizing.tensor_table import TensorInfo
from decodepool_sizing.tensor_types import TensorType
from decodepool_sizing.workspace import STEP_ROWS
from decodepool_worker.model.named_shapes import SHAPES, NamedShape, named_header

from tests.gpu.counting import CountingGpu, backend_on, step_bytes

MOST_APART = 0.001
"""Of the whole: a few vectors are planned as wide as they can be."""
LLAMA = replace(SHAPES["llama-3-8b"], blocks=8)
"""As many blocks as mix all that those of Q4_K_M do."""


@dataclass(frozen=True)
class Model:
    """A shape, and what its file says beside it."""

    shape: NamedShape
    architecture: str = "llama"
    weights: str = "Q8_0"
    other: Mapping[str, str] = field(default_factory=dict)
    """Types of matrices that have another."""

    def typed(self, tensor: TensorInfo) -> TensorInfo:
        return replace(tensor, type=TensorType[self.other.get(tensor.name.split(".")[-2], tensor.type.name)])


MODELS = {
    "Llama-3-8B": Model(LLAMA),
    "Llama-3-8B, Q4_K_M": Model(LLAMA, weights="Q4_K_M"),
    "Llama-3-70B": Model(NamedShape(5, 8192, 28672, 64, 8, 128, 128_256, 131_072, 5e5)),
    "Llama-3.2-1B": Model(NamedShape(5, 2048, 8192, 32, 8, 64, 128_256, 131_072, 5e5)),
    "Llama-2-13B": Model(NamedShape(5, 5120, 13824, 40, 40, 128, 32_000, 4096, 1e4)),
    "SmolLM2-135M": Model(NamedShape(5, 576, 1536, 9, 3, 64, 49_152, 8192, 1e5)),
    "Qwen2.5-7B": Model(NamedShape(5, 3584, 18944, 28, 4, 128, 152_064, 32_768, 1e6), "qwen2"),
    "Qwen3-0.6B": Model(NamedShape(5, 1024, 3072, 16, 8, 128, 151_936, 40_960, 1e6), "qwen3"),
    "Qwen3-32B": Model(NamedShape(5, 5120, 25600, 64, 8, 128, 151_936, 40_960, 1e6), "qwen3"),
    "heads of 80": Model(NamedShape(5, 2560, 10240, 32, 32, 80, 51_200, 4096, 1e4)),
    "gate and up of other sums": Model(LLAMA, other={"ffn_gate": "Q4_1", "ffn_up": "Q4_K"}),
    "queries of other sums": Model(LLAMA, other={"attn_q": "Q4_1", "attn_k": "Q4_K", "attn_v": "Q4_K"}),
    "both": Model(LLAMA, other={"attn_q": "Q4_1", "attn_k": "Q4_K", "ffn_gate": "Q4_K", "ffn_up": "Q4_1"}),
    "three ways": Model(LLAMA, other={"attn_q": "Q4_1", "attn_k": "Q4_K", "attn_v": "BF16", "ffn_down": "BF16"}),
    "F16 beside BF16": Model(LLAMA, other={"ffn_gate": "F16", "ffn_up": "BF16", "attn_q": "BF16", "attn_v": "F16"}),
    "slices beside each other": Model(
        NamedShape(5, 1024, 28672, 16, 16, 80, 32_000, 8192, 1e6), weights="Q4_K", other={"attn_v": "Q6_K"}
    ),
    "keys and values beside queries": Model(
        NamedShape(5, 2560, 9728, 32, 8, 80, 151_936, 8192, 1e6),
        weights="Q4_K",
        other={"attn_k": "Q8_0", "attn_v": "Q8_0"},
    ),
    "none beside each other behind norms of heads": Model(
        NamedShape(5, 1024, 3072, 16, 16, 128, 32_000, 8192, 1e6), "qwen3", weights="Q4_K", other={"attn_v": "Q6_K"}
    ),
    "some wide beside each other": Model(
        NamedShape(5, 2048, 1536, 24, 8, 80, 32_000, 8192, 1e6),
        "qwen2",
        weights="Q3_K",
        other={"attn_k": "F16", "attn_v": "Q2_K"},
    ),
    "F32": Model(LLAMA, weights="F32"),
    "F32, norms of heads": Model(NamedShape(5, 1024, 3072, 16, 8, 128, 151_936, 40_960, 1e6), "qwen3", weights="F32"),
    "F32 beside Q8_0": Model(LLAMA, other={"attn_v": "F32", "ffn_up": "F32", "output": "F32"}),
    "F32 beside sums": Model(
        LLAMA, weights="Q4_K", other={"attn_q": "F32", "attn_k": "Q8_0", "ffn_gate": "F32", "ffn_down": "F32"}
    ),
    "F32 where rows are added": Model(LLAMA, weights="BF16", other={"attn_output": "F32", "ffn_down": "F32"}),
    "F32 behind all others": Model(LLAMA, weights="F32", other={"attn_output": "Q4_1", "ffn_down": "Q6_K"}),
    "BF16": Model(LLAMA, weights="BF16"),
    "F16": Model(LLAMA, weights="F16"),
    "SmolLM2-135M, BF16": Model(NamedShape(5, 576, 1536, 9, 3, 64, 49_152, 8192, 1e5), weights="BF16"),
    "7168 outputs": Model(NamedShape(5, 7168, 20480, 56, 8, 128, 64_000, 4096, 1e6)),
}
CORES = {
    "H200": WHOLE_HOPPER,
    "a seventh of an H100": GpuCores(16, 227 << 10, is_hopper=True),
    "B200": GpuCores(148, 227 << 10),
    **{capability: cores for capability, cores in PLANNED_CORES.items() if not cores.is_hopper},
}


@pytest.fixture
def header_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Model], Header]:
    """Return what makes a model's header."""

    def made(model: Model) -> Header:
        monkeypatch.setitem(SHAPES, "other", model.shape)
        header, width = named_header("other", model.weights), model.shape.head_width
        keys = {key.removeprefix("llama."): value for key, value in header.metadata.items() if key.startswith("llama.")}
        keys |= {"attention.key_length": width, "attention.value_length": width}
        norms = [
            TensorInfo(f"blk.{block}.attn_{role}_norm.weight", (width,), TensorType.F32, 0, 4 * width)
            for block in range(model.shape.blocks)
            for role in "qk"
        ]
        own = {f"{model.architecture}.{key}": value for key, value in keys.items()}
        return replace(
            header,
            metadata={"general.architecture": model.architecture, **own},
            tensors=(*map(model.typed, header.tensors), *(norms if model.architecture == "qwen3" else [])),
        )

    return made


def planned_bytes(header: Header, cores: GpuCores, context: int, rows: int) -> int:
    shape = read_shape(header)
    return gpu_workspace_bytes(shape, cores, context, rows, step_types(shape, header.tensors))


@pytest.mark.parametrize("cores", CORES.values(), ids=list(CORES))
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_the_plan_is_what_the_engine_takes(model: Model, cores: GpuCores, header_of: Callable[[Model], Header]) -> None:
    header, context = header_of(model), model.shape.context_tokens
    planned = planned_bytes(header, cores, context, STEP_ROWS["cuda"])
    told, taken = step_bytes(header, cores, context, STEP_ROWS["cuda"])
    assert told == taken
    assert abs(planned / taken - 1) < MOST_APART


@pytest.mark.parametrize("rows", [1, 8, 24, 40, 100, 256])
@pytest.mark.parametrize("name", ["Llama-3-8B", "SmolLM2-135M", "slices beside each other", "F32 beside sums"])
def test_so_it_is_of_fewer_rows(name: str, rows: int, header_of: Callable[[Model], Header]) -> None:
    header = header_of(MODELS[name])
    planned = planned_bytes(header, WHOLE_HOPPER, 8192, rows)
    assert abs(planned / step_bytes(header, WHOLE_HOPPER, 8192, rows)[1] - 1) < MOST_APART


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_a_gpu_that_is_known_by_its_memory_alone_is_planned_with_the_most_that_any_takes(
    model: Model, header_of: Callable[[Model], Header]
) -> None:
    header = header_of(model)
    most = max(planned_bytes(header, cores, 8192, STEP_ROWS["cuda"]) for cores in ANY_CORES)
    assert all(planned_bytes(header, cores, 8192, STEP_ROWS["cuda"]) <= most for cores in CORES.values())


def test_a_hopper_without_room_for_clusters_takes_the_shares_of_best_tokens_from_its_margin(
    header_of: Callable[[Model], Header],
) -> None:
    header = header_of(MODELS["SmolLM2-135M"])
    gpu = CountingGpu(WHOLE_HOPPER, has_clusters=False)
    taken = backend_on(gpu, header, 8192, STEP_ROWS["cuda"]).workspace_bytes
    planned = planned_bytes(header, WHOLE_HOPPER, 8192, STEP_ROWS["cuda"])
    assert 0 < taken - planned <= SHARES_BYTES * STEP_ROWS["cuda"] < (10 << 30) // MARGIN_DIVISOR // 1000


def kind_of(kind: TensorType) -> MatrixKind:
    found = repacked_kind(kind)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", REPACKED, ids=lambda kind: kind.name)
def test_rows_are_rounded_for_a_type_as_the_engine_rounds_them(kind: TensorType) -> None:
    rounding, activation = rounding_of(kind.name), kind_of(kind).activation
    assert rounding is not None
    assert (rounding.planes, rounding.sums) == (activation.planes, activation.sums)


def test_types_share_launches_and_follow_each_other_as_the_engine_has_it() -> None:
    for types in permutations(REPACKED, 3):
        kinds = [kind_of(each) for each in types]
        order = sorted(range(3), key=lambda i: (kinds[i].sums == NO_SUMS, repr(kinds[i])))
        wanted = [list(alike) for _, alike in groupby(order, key=lambda i: kinds[i])]
        assert launches_of([each.name for each in types]) == wanted, types


def test_the_plan_and_the_engine_prepare_the_same_widths() -> None:
    assert PREPARED_ROWS == WIDTHS
