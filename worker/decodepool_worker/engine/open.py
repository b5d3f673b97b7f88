"""From a model file to an engine that is ready: header, plan, weights, graph, memory. The one door for every command
and the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from decodepool_kernels.cuda.errors import GpuFault
from decodepool_sizing.capacity import CapacityPlan, Demand, plan_capacity
from decodepool_sizing.devices import PROCESS_BASE_BYTES, DeviceKind, DeviceMemory, cpu_memory
from decodepool_sizing.errors import BadModelFile, CannotFit
from decodepool_sizing.header import Header, read_header
from decodepool_sizing.host import available_memory_bytes, usable_cores
from decodepool_sizing.kv import KVType
from decodepool_sizing.loaded_tensors import weight_bytes
from decodepool_sizing.matrix_types import step_types
from decodepool_sizing.quantities import exact_bytes
from decodepool_sizing.readers import FileReader, file_reader
from decodepool_sizing.shape import ModelShape
from decodepool_sizing.support import model_refusals
from decodepool_sizing.workspace import STEP_ROWS

from decodepool_worker.engine.fingerprint import stream_fingerprint
from decodepool_worker.engine.rows import Engine
from decodepool_worker.model.registry import model_graph
from decodepool_worker.weights.loader import LoadedWeights, Progress, load_weights

if TYPE_CHECKING:
    from decodepool_worker.engine.gpu_report import GpuReport

DEFAULT_SESSIONS = 8
"""Sessions of a worker that is told neither how many nor how much memory."""


@dataclass(frozen=True)
class ModelFile:
    """A model whose header has been read, checked, and found runnable."""

    header: Header
    shape: ModelShape


class MeasuredEngine(Engine, Protocol):
    """An engine that says what it has allocated."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes of intermediate results and scratch."""

    @property
    def sessions_bytes(self) -> int:
        """Bytes of pages and resident logits rows."""


OnPlan = Callable[[CapacityPlan], None]
"""Hears of a worker's plan before its weights are loaded."""


def unheard(_plan: CapacityPlan) -> None:
    """Tell nobody."""


def process_bytes() -> int:
    """Return this process's resident memory."""
    import psutil  # noqa: PLC0415 - a file that is refused need not wait for it

    return psutil.Process().memory_info().rss


@dataclass(frozen=True)
class Loaded:
    """A model ready to step. `fingerprint` names everything that decides a stream's bits: equal fingerprints mean equal
    streams. `resident_bytes` may be asked from any thread, during steps and after `engine.close` too.
    """

    engine: MeasuredEngine
    shape: ModelShape
    metadata: Mapping[str, object]
    plan: CapacityPlan
    fingerprint: str
    loaded_weight_bytes: int
    resident_bytes: Callable[[], int] = process_bytes
    base_bytes: int = PROCESS_BASE_BYTES
    gpu: GpuReport | None = None

    def measured(self) -> dict[str, int]:
        """Return what is really allocated, in bytes under the plan's names, and the process's resident memory; on a GPU
        what of it was taken, by whomever, when the engine was ready.
        """
        return {
            "weight_bytes": self.loaded_weight_bytes,
            "workspace_bytes": self.engine.workspace_bytes,
            "sessions_and_cache_bytes": self.engine.sessions_bytes,
            "resident_bytes": self.resident_bytes(),
        }

    def planned(self) -> dict[str, int]:
        """Return the plan's bytes under its names, and the resident memory it foresees."""
        plan = self.plan
        parts = {
            name: int(getattr(plan, name))
            for name in ("weight_bytes", "workspace_bytes", "reserve_bytes", "cache_bytes")
        }
        resident = self.base_bytes + sum(parts.values())
        return {
            **parts,
            "session_bytes": plan.session_bytes,
            "usable_bytes": plan.usable_bytes,
            "resident_bytes": resident,
        }


@dataclass(frozen=True)
class Wanted:
    """What a worker is asked to hold. No `memory_bytes`: what the sessions need, and as much again to remember closed
    ones.
    """

    context_tokens: int
    sessions: int | None = None
    kv_type: KVType = KVType.F16
    memory_bytes: int | None = None
    cache_reserve_bytes: int | None = None
    threads: int | None = None
    device: DeviceKind = "cpu"
    logits_rows: int | None = None
    """Rows of logits to keep, where they are not as many as sessions: a measurement, or a text's every token."""
    fused: bool = True
    graphs: bool = True
    chained: bool = True
    """On a GPU: off for one operation a launch, for launches one by one, and for steps that begin only once the one
    ahead has been read. None of them changes a bit.
    """

    def with_room(self, context_tokens: int, sessions: int, logits_rows: int) -> Wanted:
        """Return the same with other room."""
        return replace(self, context_tokens=context_tokens, sessions=sessions, logits_rows=logits_rows)


def open_model(path: Path, wanted: Wanted, progress: Progress | None = None, on_plan: OnPlan = unheard) -> Loaded:
    """Open a model file; `on_plan` hears early what it will hold. BadModelFile for a file that is broken or that the
    engine does not run; CannotFit with the numbers; GpuFault where a GPU is asked for and none can be used.
    """
    with file_reader(path) as reader:
        model = read_model(reader)
        if wanted.device == "cuda":
            return _open_on_gpu(model, reader, wanted, progress, on_plan)
        plan = plan_worker(model, wanted)
        on_plan(plan)
        threads = wanted.threads or usable_cores()
        weights = load_weights(reader, model.header, model.shape, threads=threads, progress=progress)
    return assemble(model, weights, plan, threads)


def _open_on_gpu(
    model: ModelFile, reader: FileReader, wanted: Wanted, progress: Progress | None, on_plan: OnPlan
) -> Loaded:
    with _cuda_extra():
        from decodepool_worker.engine.open_cuda import open_on_gpu  # noqa: PLC0415 - the extra may be missing
    return open_on_gpu(model, reader, wanted, progress, on_plan)


def open_named_shape(name: str, weights: str, wanted: Wanted) -> Loaded:
    """Open a shape such as llama-3-8b on a GPU, with random weights such as Q8_0. BadDemand for names that are not
    known; CannotFit; GpuFault.
    """
    with _cuda_extra():
        from decodepool_worker.engine.random_cuda import open_shape  # noqa: PLC0415 - the extra may be missing
    return open_shape(name, weights, wanted)


@contextmanager
def _cuda_extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        install = "`uv sync --inexact --extra cuda` installs it"
        raise GpuFault(f"the `cuda` extra is not installed: {error}; {install}") from error


def read_model(reader: FileReader) -> ModelFile:
    """Read and check a model's header; BadModelFile with the first reason why it cannot run."""
    header = read_header(reader)
    shape, reasons = model_refusals(header)
    if shape is None or reasons:
        raise BadModelFile(reasons[0])
    return ModelFile(header, shape)


def plan_worker(model: ModelFile, wanted: Wanted, gpu: DeviceMemory | None = None) -> CapacityPlan:
    """Plan a worker on this machine or on `gpu`; CannotFit, BadDemand as `plan_capacity` has them."""
    plan = _planned(model, wanted, gpu)
    return plan if wanted.logits_rows is None else replace(plan, sessions=wanted.logits_rows)


def _planned(model: ModelFile, wanted: Wanted, gpu: DeviceMemory | None) -> CapacityPlan:
    weights = weight_bytes(model.shape, model.header.tensors, "cpu" if gpu is None else gpu.kind)
    sessions = wanted.sessions
    if sessions is None and wanted.memory_bytes is None and wanted.cache_reserve_bytes is None:
        sessions = DEFAULT_SESSIONS
    demand = Demand(
        model.shape,
        weights,
        context_tokens=wanted.context_tokens,
        kv_type=wanted.kv_type,
        sessions=sessions,
        cache_reserve_bytes=wanted.cache_reserve_bytes,
        max_step_rows=STEP_ROWS["cpu" if gpu is None else gpu.kind],
        types=step_types(model.shape, model.header.tensors),
    )
    if wanted.memory_bytes is None:
        return plan_capacity(demand, _enough(demand, gpu or cpu_memory(available_memory_bytes(), "this machine")))
    if gpu is None:
        _require_here(wanted.memory_bytes, available_memory_bytes())
    return plan_capacity(demand, gpu or cpu_memory(wanted.memory_bytes))


def _require_here(memory_bytes: int, available_bytes: int) -> None:
    """Raise CannotFit where this machine has less than a worker is told to use: the plan would promise what the kernel
    then refuses, or gives until it kills the worker.
    """
    if memory_bytes > available_bytes:
        here = f"this machine has {exact_bytes(available_bytes)} available"
        raise CannotFit(
            f"{exact_bytes(memory_bytes)} of memory are to be used, but {here}",
            needed_bytes=memory_bytes,
            available_bytes=available_bytes,
            advice="without an amount, a worker takes what its sessions need",
        )


def _enough(demand: Demand, host: DeviceMemory) -> DeviceMemory:
    """Return as much of a device as the sessions asked for need; all of it where no number was asked for."""
    if demand.sessions is None:
        return host
    sessions_bytes = demand.sessions * demand.session_bytes
    enough = demand.on(host).fixed_bytes + (demand.cache_reserve_bytes or sessions_bytes) + sessions_bytes
    return replace(host, usable_bytes=min(host.usable_bytes, enough))


def assemble(model: ModelFile, weights: LoadedWeights, plan: CapacityPlan, threads: int) -> Loaded:
    """Build the graph and the engine around loaded weights."""
    from decodepool_kernels.cpu.cache import kernel_digest  # noqa: PLC0415 - compiled kernels take a second to import

    from decodepool_worker.engine.cpu import CpuEngine  # noqa: PLC0415

    factors = weights.vectors.get("rope_freqs.weight")
    graph = model_graph(model.shape, model.header, None if factors is None else factors.tolist())
    engine = CpuEngine(
        graph, matrices=weights.matrices, vectors=weights.vectors, shape=model.shape, plan=plan, threads=threads
    )
    fingerprint = stream_fingerprint(engine, graph, weights.digest, plan.kv_type, ("cpu", kernel_digest()))
    return Loaded(engine, model.shape, model.header.metadata, plan, fingerprint, weights.size_bytes)
