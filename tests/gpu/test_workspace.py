"""The plan's workspace of a GPU beside what the engine takes for a step. No GPU needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.backend import WIDTHS
from decodepool_sizing.devices import WHOLE_HOPPER, GpuCores
from decodepool_sizing.gpu_workspace import PREPARED_ROWS, gpu_workspace_bytes
from decodepool_sizing.header import Header
from decodepool_sizing.shape import read_shape
from decodepool_sizing.tensor_table import TensorInfo
from decodepool_sizing.tensor_types import TensorType
from decodepool_worker.model.named_shapes import SHAPES, NamedShape, named_header

from tests.gpu.counting import step_bytes

MOST_APART = 0.03
BF16_APART = 0.13
"""The plan does not know of the third plane of activations of BF16 weights."""
LLAMA = SHAPES["llama-3-8b"]


@dataclass(frozen=True)
class Model:
    """A shape, and what its file says beside it."""

    shape: NamedShape
    architecture: str = "llama"
    weights: str = "Q8_0"


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
    "7168 outputs": Model(NamedShape(5, 7168, 20480, 56, 8, 128, 64_000, 4096, 1e6)),
}
CORES = {
    "H200": WHOLE_HOPPER,
    "A100": GpuCores(108, is_hopper=False),
    "a seventh of an H100": GpuCores(16, is_hopper=True),
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
            tensors=(*header.tensors, *(norms if model.architecture == "qwen3" else [])),
        )

    return made


@pytest.mark.parametrize("cores", CORES.values(), ids=list(CORES))
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_the_plan_is_what_the_engine_takes(model: Model, cores: GpuCores, header_of: Callable[[Model], Header]) -> None:
    header, context = header_of(model), model.shape.context_tokens
    planned = gpu_workspace_bytes(read_shape(header), cores, context, 256)
    told, taken = step_bytes(header, cores, context, 256)
    assert told == taken
    assert abs(planned / taken - 1) < MOST_APART


@pytest.mark.parametrize("rows", [1, 8, 40, 100, 256])
def test_so_it_is_of_fewer_rows(rows: int, header_of: Callable[[Model], Header]) -> None:
    header = header_of(Model(LLAMA))
    planned = gpu_workspace_bytes(read_shape(header), WHOLE_HOPPER, 8192, rows)
    assert abs(planned / step_bytes(header, WHOLE_HOPPER, 8192, rows)[1] - 1) < MOST_APART


def test_bf16_weights_take_a_little_more_than_is_planned(header_of: Callable[[Model], Header]) -> None:
    header = header_of(Model(LLAMA, weights="BF16"))
    planned = gpu_workspace_bytes(read_shape(header), WHOLE_HOPPER, 8192, 256)
    assert planned < step_bytes(header, WHOLE_HOPPER, 8192, 256)[1] < (1 + BF16_APART) * planned


def test_the_plan_and_the_engine_prepare_the_same_widths() -> None:
    assert PREPARED_ROWS == WIDTHS
