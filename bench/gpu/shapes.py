"""A model of Llama-3-8B's shape with random weights, made on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from decodepool_kernels.cuda.backend import CudaBackend
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.packing import PackedMatrix, pack_quantised
from decodepool_kernels.cuda.pages import KvPages
from decodepool_kernels.cuda.records import DeviceMatrix, Weights
from decodepool_kernels.graph import Graph
from decodepool_sizing.header import Header
from decodepool_sizing.layouts import QUANT_LAYOUTS
from decodepool_sizing.metadata import Value
from decodepool_sizing.shape import ModelShape, read_shape
from decodepool_sizing.tensor_table import TensorInfo
from decodepool_sizing.tensor_types import TensorType
from decodepool_worker.model import llama
from decodepool_worker.model.rotation import rotation
from decodepool_worker.model.tensors import ModelTensors
from decodepool_worker.weights.formats import FORMATS

BLOCKS, WIDTH, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 32, 4096, 14336, 32, 8, 128, 128256
SAMPLE_OUTPUTS = 1024
"""Rows of random weights that are made and then repeated: far more than any cache tells apart."""


def llama_3_8b() -> ModelShape:
    """Return the shape."""
    keys = {
        "block_count": BLOCKS,
        "context_length": 131_072,
        "embedding_length": WIDTH,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 500000.0,
        "rope.dimension_count": HEAD_DIM,
    }
    embedding = TensorInfo("token_embd.weight", (WIDTH, VOCABULARY), TensorType.F32, 0, 4 * WIDTH * VOCABULARY)
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        **{f"llama.{key}": value for key, value in keys.items()},
    }
    return read_shape(Header(3, 32, metadata, (embedding,), 0, 1 << 40))


def tensor_dims() -> dict[str, tuple[int, ...]]:
    """Return the dims of every tensor, fastest first."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    dims: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (WIDTH, VOCABULARY),
        "output.weight": (WIDTH, VOCABULARY),
        "output_norm.weight": (WIDTH,),
    }
    for layer in range(BLOCKS):
        names: dict[str, tuple[int, ...]] = {
            "attn_norm": (WIDTH,), "attn_q": (WIDTH, queries), "attn_k": (WIDTH, keys), "attn_v": (WIDTH, keys),
            "attn_output": (queries, WIDTH), "ffn_norm": (WIDTH,), "ffn_gate": (WIDTH, FEED_FORWARD),
            "ffn_up": (WIDTH, FEED_FORWARD), "ffn_down": (FEED_FORWARD, WIDTH),
        }  # fmt: skip
        dims |= {f"blk.{layer}.{name}.weight": value for name, value in names.items()}
    return dims


def random_matrix(weight_type: str, outputs: int, inputs: int) -> PackedMatrix:
    """Return a packed matrix whose products keep the spread of what they are given."""
    layout, random = QUANT_LAYOUTS[weight_type], np.random.default_rng(inputs)
    codes = random.integers(0, 1 << layout.code_bits, (outputs, inputs), dtype=np.uint8)
    spread = np.full((outputs, inputs // layout.sub_block), inputs**-0.5 / (0.29 * (1 << layout.code_bits)))
    scales = spread.astype(np.float16 if layout.scale_bytes == 2 else np.float32)
    minima = (spread * (-0.5 * (1 << layout.code_bits))).astype(scales.dtype) if layout.has_minimum else None
    return pack_quantised(layout, codes, scales, minima, FORMATS[weight_type].zero)


@dataclass(frozen=True)
class Placed:
    """Weights on the device and the bytes that a step reads of them: all but the embedding."""

    weights: Weights
    step_bytes: int


def random_weights(gpu: Gpu, weight_type: str) -> Placed:
    """Make every tensor on the device."""
    samples: dict[int, tuple[int, PackedMatrix]] = {}
    matrices: dict[str, DeviceMatrix] = {}
    vectors: dict[str, int] = {}
    step_bytes = 0
    for name, dims in tensor_dims().items():
        if len(dims) == 1:
            vectors[name] = _uploaded(gpu, np.ones(dims[0], np.float32).view(np.uint8))
            continue
        inputs, outputs = dims
        if inputs not in samples:
            packed = random_matrix(weight_type, SAMPLE_OUTPUTS, inputs)
            samples[inputs] = (_uploaded(gpu, packed.data), packed)
        source, packed = samples[inputs]
        size = packed.size_bytes * outputs // SAMPLE_OUTPUTS
        address = gpu.allocate(size)
        for at in range(0, size, packed.size_bytes):
            gpu.copy(address + at, source, min(packed.size_bytes, size - at))
        matrices[name] = DeviceMatrix(packed.kind, outputs, inputs, packed.zero, address, size)
        step_bytes += 0 if name == "token_embd.weight" else size
    gpu.synchronize()
    return Placed(Weights(matrices, vectors, step_bytes), step_bytes)


def _uploaded(gpu: Gpu, data: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
    address = gpu.allocate(data.nbytes)
    gpu.upload(address, np.ascontiguousarray(data))
    gpu.synchronize()
    return address


def backend_of(gpu: Gpu, weights: Weights, *, pages: int, slots: int, table_width: int) -> CudaBackend:
    """Return the model ready to step."""
    shape, graph = llama_3_8b(), Graph()
    llama.build(graph, ModelTensors(shape, tensor_dims(), rotation(shape.rope, None, interleaved=True)))
    kv = KvPages(gpu, [(KV_HEADS, HEAD_DIM)] * BLOCKS, pages)
    return CudaBackend(
        gpu,
        graph,
        weights,
        kv,
        vocabulary_size=VOCABULARY,
        slots=slots,
        max_rows=256,
        table_width=table_width,
    )
