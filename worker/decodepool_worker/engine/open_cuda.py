"""From a model file to an engine on a GPU. Imported only where a GPU is asked for: it needs the `cuda` extra."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from decodepool_kernels.cuda import packing
from decodepool_kernels.cuda.backend import Settings, upload_weights
from decodepool_kernels.cuda.compile import sources_digest
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.packing import PackedMatrix
from decodepool_kernels.cuda.records import Weights
from decodepool_sizing.capacity import CapacityPlan
from decodepool_sizing.devices import CONTEXT_BYTES, gpu_memory
from decodepool_sizing.errors import CannotFit
from decodepool_sizing.host import usable_cores
from decodepool_sizing.quantities import exact_bytes
from decodepool_sizing.readers import FileReader

from decodepool_worker.engine.cuda import CudaEngine, check_kv_type
from decodepool_worker.engine.fingerprint import files_digest, stream_fingerprint
from decodepool_worker.engine.open import Loaded, ModelFile, Wanted, plan_worker
from decodepool_worker.engine.self_test import require_same_bits
from decodepool_worker.model.registry import model_graph
from decodepool_worker.weights.loader import Progress, load_packed
from decodepool_worker.weights.matrices import Packing, matrix_packed_by


def open_on_gpu(model: ModelFile, reader: FileReader, wanted: Wanted, progress: Progress | None = None) -> Loaded:
    """Open a checked model on the first GPU. GpuFault where there is none, or its driver is too old; CannotFit."""
    gpu = Gpu()
    try:
        plan = planned_on(gpu, model, wanted)
        pack: Packing[PackedMatrix] = packing
        weights = load_packed(
            reader,
            model.header,
            model.shape,
            partial(matrix_packed_by, pack),
            threads=wanted.threads or usable_cores(),
            progress=progress,
        )
        factors = weights.vectors.get("rope_freqs.weight")
        placed = upload_weights(gpu, weights.matrices, weights.vectors)
        turns = None if factors is None else factors.tolist()
        return opened_around(gpu, model, placed, plan, wanted, digest=weights.digest, rope_factors=turns)
    except BaseException:
        gpu.close()
        raise


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
    return plan_worker(model, wanted, gpu_memory(wanted.memory_bytes or there, gpu.name))


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
    graph = model_graph(model.shape, model.header, rope_factors)
    settings = Settings(fused=wanted.fused, graphs=wanted.graphs)
    threads = wanted.threads or usable_cores()
    engine = CudaEngine(gpu, graph, weights, model.shape, plan, threads=threads, settings=settings)
    require_same_bits(engine, gpu.name)
    lowering = files_digest(sorted(Path(packing.__file__).parent.glob("*.py")))
    backend = ("cuda", gpu.name, str(gpu.capability), sources_digest(), lowering)
    fingerprint = stream_fingerprint(engine, graph, digest, plan.kv_type, backend)
    loaded = Loaded(engine, model.shape, model.header.metadata, plan, fingerprint, weights.size_bytes)
    return replace(loaded, resident_bytes=gpu.used_bytes, base_bytes=CONTEXT_BYTES, gpu=engine.report)
