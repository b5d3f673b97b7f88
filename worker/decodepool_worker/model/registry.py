"""Which file builds which architecture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decodepool_kernels.graph import Graph
from decodepool_sizing.header import Header
from decodepool_sizing.shape import ModelShape

from decodepool_worker.model import llama, qwen2, qwen3
from decodepool_worker.model.rotation import rotation
from decodepool_worker.model.tensors import ModelTensors


@dataclass(frozen=True)
class Architecture:
    """How a step is recorded, and how rotary pairs lie."""

    build: Callable[[Graph, ModelTensors], None]
    interleaved: bool


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(llama.build, llama.INTERLEAVED),
    "qwen2": Architecture(qwen2.build, qwen2.INTERLEAVED),
    "qwen3": Architecture(qwen3.build, qwen3.INTERLEAVED),
}


def model_graph(shape: ModelShape, header: Header, rope_factors: Sequence[float] | None) -> Graph:
    """Return the step of a model whose tensors have been checked."""
    architecture = ARCHITECTURES[shape.architecture]
    dims = {tensor.name: tensor.dims for tensor in header.tensors}
    graph = Graph()
    architecture.build(
        graph, ModelTensors(shape, dims, rotation(shape.rope, rope_factors, interleaved=architecture.interleaved))
    )
    return graph
