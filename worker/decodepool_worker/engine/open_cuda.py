"""From a model file to an engine on a GPU. Imported only where a GPU is asked for: it needs the `cuda` extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from decodepool_kernels.cuda import packing
from decodepool_kernels.cuda.backend import Settings, placed_matrix
from decodepool_kernels.cuda.compile import is_ptx, sources_digest, target_of
from decodepool_kernels.cuda.device import PIECE_BYTES, Gpu, Region
from decodepool_kernels.cuda.formats import device_bytes, repacked_kind
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.packing import PackedMatrix
from decodepool_kernels.cuda.records import DeviceMatrix, Weights
from decodepool_kernels.cuda.repack import Repacking
from decodepool_sizing.capacity import CapacityPlan
from decodepool_sizing.devices import CONTEXT_BYTES, gpu_memory
from decodepool_sizing.errors import BadModelFile, CannotFit
from decodepool_sizing.gpus import cores_of
from decodepool_sizing.header import TensorInfo
from decodepool_sizing.host import usable_cores
from decodepool_sizing.layouts import round_up
from decodepool_sizing.loaded_tensors import loaded_tensors
from decodepool_sizing.quantities import exact_bytes
from decodepool_sizing.readers import FileReader
from numpy.typing import NDArray

from decodepool_worker.engine.cuda import CudaEngine, check_kv_type
from decodepool_worker.engine.fingerprint import files_digest, stream_fingerprint
from decodepool_worker.engine.open import Loaded, ModelFile, OnPlan, Wanted, plan_worker, unheard
from decodepool_worker.engine.self_test import require_same_bits
from decodepool_worker.engine.tensor_cores import require_arithmetic
from decodepool_worker.model.registry import model_graph
from decodepool_worker.weights.formats import FORMATS
from decodepool_worker.weights.loader import Progress, load_packed, tensor_slices
from decodepool_worker.weights.matrices import Packing, matrix_packed_by

DEVICE_SLICE_ELEMENTS = 1 << 23
"""Weights that go to the device at once: enough that copies are long, little enough that threads hold few."""
_PACKING: Packing[PackedMatrix] = packing


def open_on_gpu(
    model: ModelFile,
    reader: FileReader,
    wanted: Wanted,
    progress: Progress | None = None,
    on_plan: OnPlan = unheard,
) -> Loaded:
    """Open a checked model on the first GPU. GpuFault where there is none, or its driver is too old; CannotFit."""
    gpu = Gpu()
    try:
        plan = planned_on(gpu, model, wanted)
        on_plan(plan)
        loaded = loaded_on(gpu, model, reader, threads=wanted.threads or usable_cores(), progress=progress)
        factors = loaded.vectors.get("rope_freqs.weight")
        turns = None if factors is None else factors.tolist()
        return opened_around(gpu, model, loaded.weights, plan, wanted, digest=loaded.digest, rope_factors=turns)
    except BaseException:
        gpu.close()
        raise


@dataclass(frozen=True)
class OnDevice:
    """A model's weights on the device; its vectors here too, since a rotation is made of one; the digest of all."""

    weights: Weights
    vectors: Mapping[str, NDArray[np.float32]]
    digest: str


def loaded_on(
    gpu: Gpu, model: ModelFile, reader: FileReader, *, threads: int, progress: Progress | None = None
) -> OnDevice:
    """Load a model's weights: the file's bytes go to the device slice by slice and are repacked there, so that this
    machine never holds them all. BadModelFile names the first tensor at fault.
    """
    header, tensors = model.header, loaded_tensors(model.shape, model.header.tensors)
    region = weights_region(gpu, tensors)
    repacking = Repacking(gpu, KernelLibrary(gpu), region, len(tensors))
    pack = partial(_on_device, repacking)
    weights = load_packed(
        reader, header, model.shape, pack, threads=threads, progress=progress, slice_elements=DEVICE_SLICE_ELEMENTS
    )
    for name in repacking.finish():
        tensor = header.by_name[name]
        matrix_packed_by(_PACKING, tensor, tensor_slices(reader, tensor))  # refuses it, and says which element it is
        raise BadModelFile(f"tensor {name}: a weight is NaN or infinite")
    vectors = {name: region.place(vector) for name, vector in weights.vectors.items()}
    return OnDevice(Weights(weights.matrices, vectors, weights.size_bytes), weights.vectors, weights.digest)


def weights_region(gpu: Gpu, tensors: Sequence[TensorInfo]) -> Region:
    """Take the memory of a model's weights."""
    sizes = [round_up(device_bytes(tensor.type, tensor.dims), PIECE_BYTES) for tensor in tensors]
    return Region(gpu, sum(sizes))


def _on_device(repacking: Repacking, tensor: TensorInfo, slices: Iterable[bytes]) -> DeviceMatrix:
    """Bring one matrix to the device."""
    inputs, outputs = tensor.dims
    if repacked_kind(tensor.type) is None:
        packed = matrix_packed_by(_PACKING, tensor, slices)
        return placed_matrix(repacking.place, packed)
    zero = FORMATS[tensor.type.name].zero if tensor.type.name in FORMATS else 0
    filling = repacking.matrix(tensor.name, tensor.type, outputs, inputs, zero)
    for raw in slices:
        filling.add(raw)
    return filling.matrix


def planned_on(gpu: Gpu, model: ModelFile, wanted: Wanted) -> CapacityPlan:
    """Plan a worker on what the GPU has free. CannotFit where it is told to use more than there is."""
    check_kv_type(wanted.kv_type)
    free = gpu.free_bytes() + CONTEXT_BYTES  # the context is there already, and counts as part of the plan
    there = min(gpu.memory_bytes, free)
    if wanted.memory_bytes is not None and wanted.memory_bytes > there:
        here = f"{gpu.name} has {exact_bytes(gpu.memory_bytes)}, {exact_bytes(gpu.free_bytes())} of them free"
        raise CannotFit(
            f"{exact_bytes(wanted.memory_bytes)} of memory are to be used, but {here}",
            needed_bytes=wanted.memory_bytes,
            available_bytes=there,
            advice="without an amount, a worker takes what its sessions need",
        )
    cores = cores_of(f"{gpu.capability / 10}")
    return plan_worker(model, wanted, gpu_memory(wanted.memory_bytes or there, gpu.name, cores))


def opened_around(
    gpu: Gpu,
    model: ModelFile,
    weights: Weights,
    plan: CapacityPlan,
    wanted: Wanted,
    *,
    digest: str,
    rope_factors: list[float] | None = None,
) -> Loaded:
    """Build the graph and the engine around weights that are on the device."""
    kinds = dict.fromkeys(matrix.kind for matrix in weights.matrices.values() if matrix.kind is not None)
    require_arithmetic(gpu, kinds)
    graph = model_graph(model.shape, model.header, rope_factors)
    settings = Settings(fused=wanted.fused, graphs=wanted.graphs, chained=wanted.chained)
    threads = wanted.threads or usable_cores()
    engine = CudaEngine(gpu, graph, weights, model.shape, plan, threads=threads, settings=settings)
    require_same_bits(engine, gpu.name)
    fingerprint = stream_fingerprint(engine, graph, digest, plan.kv_type, backend_of(gpu))
    loaded = Loaded(engine, model.shape, model.header.metadata, plan, fingerprint, weights.size_bytes)
    taken = gpu.used_bytes()  # all that ever will be: from here on the GPU is the stepping thread's alone
    return replace(loaded, resident_bytes=lambda: taken, base_bytes=CONTEXT_BYTES, gpu=engine.report)


def backend_of(gpu: Gpu) -> tuple[str, ...]:
    """Name what computes on a GPU, as a fingerprint has it. The driver is part of it where it compiles the kernels."""
    lowering = files_digest(sorted(Path(packing.__file__).parent.glob("*.py")))
    compiler = (gpu.driver_version,) if is_ptx(target_of(gpu.capability)) else ()
    return ("cuda", gpu.name, str(gpu.capability), sources_digest(), lowering, *compiler)
