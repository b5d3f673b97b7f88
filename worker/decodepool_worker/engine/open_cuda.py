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
from decodepool_sizing.devices import CONTEXT_BYTES, gpu_memory
from decodepool_sizing.host import usable_cores
from decodepool_sizing.readers import FileReader

from decodepool_worker.engine.cuda import CudaEngine, check_kv_type
from decodepool_worker.engine.fingerprint import files_digest, stream_fingerprint
from decodepool_worker.engine.open import Loaded, ModelFile, Wanted, plan_worker
from decodepool_worker.model.registry import model_graph
from decodepool_worker.weights.loader import Progress, load_packed
from decodepool_worker.weights.matrices import Packing, matrix_packed_by


def open_on_gpu(
    model: ModelFile,
    reader: FileReader,
    wanted: Wanted,
    progress: Progress | None = None,
) -> Loaded:
    """Open a checked model on the first GPU. GpuFault where there is none, or its driver is too old."""
    check_kv_type(wanted.kv_type)
    settings = Settings(fused=wanted.fused, graphs=wanted.graphs)
    gpu = Gpu()
    plan = plan_worker(model, wanted, gpu_memory(wanted.memory_bytes or gpu.memory_bytes, gpu.name))
    pack: Packing[PackedMatrix] = packing
    threads = wanted.threads or usable_cores()
    weights = load_packed(
        reader,
        model.header,
        model.shape,
        partial(matrix_packed_by, pack),
        threads=threads,
        progress=progress,
    )
    factors = weights.vectors.get("rope_freqs.weight")
    graph = model_graph(model.shape, model.header, None if factors is None else factors.tolist())
    on_device = upload_weights(gpu, weights.matrices, weights.vectors)
    engine = CudaEngine(gpu, graph, on_device, model.shape, plan, threads=threads, settings=settings)
    lowering = files_digest(sorted(Path(packing.__file__).parent.glob("*.py")))
    backend = ("cuda", gpu.name, str(gpu.capability), sources_digest(), lowering)
    fingerprint = stream_fingerprint(engine, graph, weights.digest, plan.kv_type, backend)
    loaded = Loaded(engine, model.shape, model.header.metadata, plan, fingerprint, weights.size_bytes)
    return replace(loaded, resident_bytes=gpu.used_bytes, base_bytes=CONTEXT_BYTES)
