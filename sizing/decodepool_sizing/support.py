"""What the engines run, as tables; and why they refuse a model or a GPU, as one line a reason."""

from __future__ import annotations

from collections.abc import Iterator

from decodepool_sizing.devices import DeviceKind
from decodepool_sizing.errors import BadModelFile, UnknownArchitecture
from decodepool_sizing.expected import DENSE_PARTS, check_tensors
from decodepool_sizing.gpus import GPUS, cores_of
from decodepool_sizing.header import Header
from decodepool_sizing.kv import PAGE_TOKENS, KVType
from decodepool_sizing.layouts import BLOCK_INPUTS, FLOAT_BYTES, QUANT_LAYOUTS
from decodepool_sizing.loaded_tensors import loaded_tensors
from decodepool_sizing.shape import ModelShape, read_shape
from decodepool_sizing.tensor_types import TensorType

RUN_ARCHITECTURES: frozenset[str] = frozenset(DENSE_PARTS)

RUN_WEIGHT_TYPES = frozenset(TensorType[name] for name in (*FLOAT_BYTES, *QUANT_LAYOUTS))

RUN_KV_TYPES: frozenset[KVType] = frozenset(KVType)
GPU_KV_TYPES: frozenset[KVType] = frozenset({KVType.F16, KVType.Q8_0})

OLDEST_COMPUTE_CAPABILITY = "8.0"
COPY_ENGINE_CAPABILITY = 9.0
GPU_VOCABULARY = 1 << 18
"""The most tokens that a GPU draws one of."""
FEWEST_HALF_PAGES, QUERY_COLUMNS, QUERY_PADDING = 3, 8, 16
"""Keys, or values, of a page in attention's ring; the queries of a unit, and more floats than lie beside each."""
WEIGHTS_BYTES = 8 * 4 * 4 + PAGE_TOKENS // 16 * 32 * 16
"""Of a page's tokens, and the largest scores of its columns."""


def run_kv_types(device: DeviceKind) -> frozenset[KVType]:
    """Return how the engine of a device keeps keys and values."""
    return RUN_KV_TYPES if device == "cpu" else GPU_KV_TYPES


def gpu_refusals(compute_capability: str) -> list[str]:
    """Return why the CUDA engine would not run on a GPU of a compute capability such as 7.5, a line for each reason."""
    if float(compute_capability) >= float(OLDEST_COMPUTE_CAPABILITY):
        return []
    return [
        f"compute capability {compute_capability}: the CUDA engine runs on {OLDEST_COMPUTE_CAPABILITY} and later ones"
    ]


def shape_refusals(shape: ModelShape, kv_type: KVType, compute_capability: str | None) -> list[str]:
    """Return why the CUDA engine would not run a model of supported parts on a GPU, whose compute capability is None
    where it is not known, a line for each reason.
    """
    lines = []
    if shape.vocabulary_size > GPU_VOCABULARY:
        words = f"a vocabulary of {shape.vocabulary_size}"
        lines.append(f"{words}: the engine draws tokens from up to {GPU_VOCABULARY} on a GPU")
    if compute_capability is None or kv_type not in GPU_KV_TYPES:
        return lines
    width = max(max(layer.key_length, layer.value_length) for layer in shape.layers)
    (cores,), needed = cores_of(compute_capability), attention_shared_bytes(width, kv_type, compute_capability)
    if needed > cores.shared_bytes:
        there = f"a thread block of compute capability {compute_capability} has {cores.shared_bytes}"
        lines.append(f"heads of {width} dimensions as {kv_type}: attention shares {needed} bytes, {there}")
    return lines


def refused_capabilities(shape: ModelShape, kv_type: KVType) -> tuple[str, ...]:
    """Return the compute capabilities, of those that are known, on which the CUDA engine runs other models alone."""
    known = sorted({gpu.compute_capability for gpu in GPUS}, key=float)
    return tuple(each for each in known if not gpu_refusals(each) and shape_refusals(shape, kv_type, each))


def attention_shared_bytes(head_dimensions: int, kv_type: KVType, compute_capability: str) -> int:
    """Return the least shared memory of a thread block of attention: its ring, the queries of its units, its weights.
    A GPU with a copy engine holds the next unit's queries, too.
    """
    ring = FEWEST_HALF_PAGES * PAGE_TOKENS * kv_type.vector_bytes(head_dimensions)
    units = 2 if float(compute_capability) >= COPY_ENGINE_CAPABILITY else 1
    return ring + units * 4 * QUERY_COLUMNS * (head_dimensions + QUERY_PADDING) + WEIGHTS_BYTES


_TABLE_TYPES = frozenset({TensorType.I8, TensorType.I16, TensorType.I32, TensorType.I64})
"""Integers are tables, such as which experts a token takes, and no weights."""

HEAD_DIMENSIONS = 16
"""What the dimensions of a head must be a multiple of."""

_NOT_YET = "the engine does not run this yet"


def model_refusals(header: Header) -> tuple[ModelShape | None, list[str]]:
    """Return a model's shape, None where its architecture is unknown, and why the engine refuses it. BadModelFile for
    a broken file.
    """
    try:
        shape = read_shape(header)
    except UnknownArchitecture as error:
        return None, [str(error)]
    return shape, refusals(shape, header)


def refusals(shape: ModelShape, header: Header) -> list[str]:
    """Return why the engine would not run a model, a line for each reason; empty where it would."""
    if shape.architecture not in RUN_ARCHITECTURES:
        known = ", ".join(sorted(RUN_ARCHITECTURES))
        return [f"architecture {shape.architecture}: {_NOT_YET}; it runs {known}", *_type_refusals(shape, header)]
    if shape.experts is not None:
        return [f"{shape.experts.count} experts in a {shape.architecture}: {_NOT_YET}", *_type_refusals(shape, header)]
    own = (*_rope_refusals(shape), *_tensor_refusals(shape, header), *_width_refusals(shape, header))
    return [*own, *_type_refusals(shape, header)]


def _rope_refusals(shape: ModelShape) -> Iterator[str]:
    if shape.rope.dimension_count != shape.key_length:
        yield f"rope turns {shape.rope.dimension_count} of {shape.key_length} dimensions: {_NOT_YET}"
    if len(set(shape.layers)) > 1:
        yield f"layers of different sizes in a {shape.architecture}: {_NOT_YET}"
    if shape.key_length != shape.value_length:
        yield f"keys of {shape.key_length} and values of {shape.value_length}: {_NOT_YET}"


def _width_refusals(shape: ModelShape, header: Header) -> Iterator[str]:
    """Vectors that the engine's lanes and blocks do not divide; of several matrices, the first."""
    if shape.key_length % HEAD_DIMENSIONS:
        yield f"heads of {shape.key_length} dimensions, not a multiple of {HEAD_DIMENSIONS}: {_NOT_YET}"
    for tensor in loaded_tensors(shape, header.tensors):
        if len(tensor.dims) > 1 and tensor.dims[0] % BLOCK_INPUTS:
            yield f"tensor {tensor.name}: {tensor.dims[0]} inputs, not a multiple of {BLOCK_INPUTS}: {_NOT_YET}"
            return


def _tensor_refusals(shape: ModelShape, header: Header) -> Iterator[str]:
    try:
        check_tensors(shape, header)
    except BadModelFile as error:
        yield str(error)


def _type_refusals(shape: ModelShape, header: Header) -> Iterator[str]:
    """One line a type, naming the first tensor of it."""
    seen: dict[TensorType, list[str]] = {}
    for tensor in loaded_tensors(shape, header.tensors):
        if tensor.type not in RUN_WEIGHT_TYPES | _TABLE_TYPES:
            seen.setdefault(tensor.type, []).append(tensor.name)
    for kind, names in seen.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"tensor {names[0]}{others}: type {kind.name}: {_NOT_YET}"
