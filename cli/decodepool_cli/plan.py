"""`decodepool plan`: how many sessions a device holds of a model, and what limits them.

It ends with 0 where a worker would start, as far as the header and the table of GPUs tell: the plan fits, and the
device's engine runs the model so. Where it would not, what is known is told all the same, and it ends with 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from decodepool_sizing.capacity import CapacityPlan, Demand, LimitedBy, plan_capacity
from decodepool_sizing.devices import DeviceKind, DeviceMemory, cpu_memory, gpu_memory
from decodepool_sizing.errors import CannotFit, told_url
from decodepool_sizing.gpu_names import find_gpu, is_shared
from decodepool_sizing.gpus import GPU
from decodepool_sizing.host import available_memory_bytes
from decodepool_sizing.kv import KVType
from decodepool_sizing.loaded_tensors import weight_bytes
from decodepool_sizing.matrix_types import step_types
from decodepool_sizing.quantities import exact_bytes
from decodepool_sizing.session_bytes import kv_types
from decodepool_sizing.shape import ModelShape
from decodepool_sizing.support import gpu_refusals, run_kv_types, shape_refusals
from decodepool_sizing.workspace import STEP_ROWS

from decodepool_cli.amounts import amount_option
from decodepool_cli.faults import FAILED, Fault, bad_input
from decodepool_cli.model import FileOrURL, HeaderOption, Model, header_options, read_model
from decodepool_cli.output import AsJson, columns, console, plain, print_json, size

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

BAR_WIDTH = 64
PART_MARKS = {
    "weights": ("blue", "\u2588"),
    "workspace": ("magenta", "\u2593"),
    "sessions": ("green", "\u2592"),
    "cache": ("cyan", "\u2591"),
    "unused": ("bright_black", "\u00b7"),
}
"""Colour and cell of each part: they can be told apart without colours too."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is planned for: a device, and the GPU's own row where it was named."""

    device: DeviceMemory
    gpu: GPU | None = None


def plan(
    *,
    file: FileOrURL,
    context: Annotated[int, typer.Option(min=1, help="Tokens that each session may hold.")],
    gpu: Annotated[
        str | None, typer.Option(help="Plan for a GPU by name, such as h200, or as its node's label has it.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Plan for this much memory, such as 80GiB, of the GPU if any.")
    ] = None,
    device: Annotated[DeviceKind | None, typer.Option(help="What the memory belongs to; cpu by default.")] = None,
    kv_type: Annotated[KVType, typer.Option(help="How keys and values are kept.")] = KVType.F16,
    sessions: Annotated[int | None, typer.Option(min=1, help="Plan exactly this many sessions.")] = None,
    cache_reserve: Annotated[
        str | None, typer.Option(help="Bytes that caches must leave to sessions, such as 4GiB.")
    ] = None,
    json: AsJson = False,
    header: HeaderOption = None,
) -> None:
    """Show how many sessions a device holds, and what limits them."""
    target = _target(gpu, memory, device)
    model = read_model(file, header_options(header))
    reserve = amount_option(cache_reserve, "--cache-reserve")
    if model.shape is None:
        raise _nothing_planned(model, json=json)
    demand = _demand(
        model, model.shape, target.device.kind, context=context, kv_type=kv_type, sessions=sessions, reserve=reserve
    )
    notes = [*model.refusals, *_refusals(demand.shape, kv_type, target)]
    try:
        planned = plan_capacity(demand, target.device)
    except CannotFit as error:
        if not json:
            raise Fault("; ".join([str(error), error.advice, *(f"not run: {note}" for note in notes)])) from None
        print_json(_described_refusal(error, demand, target.device, notes))
        raise typer.Exit(FAILED) from None
    except ValueError as error:
        raise bad_input(str(error)) from None
    if json:
        print_json(described(planned, notes))
    else:
        _show(model, planned, target, notes)
    if notes:
        raise typer.Exit(FAILED)


def described(plan: CapacityPlan, refusals: list[str]) -> dict[str, Any]:
    """Return what is printed for `--json`."""
    return {
        "fits": True,
        "sessions": plan.sessions,
        "context_tokens": plan.context_tokens,
        "kv_type": plan.kv_type.value,
        "device": {"kind": plan.device.kind, "name": plan.device.name},
        "memory_bytes": plan.device.memory_bytes,
        "usable_bytes": plan.usable_bytes,
        "weight_bytes": plan.weight_bytes,
        "workspace_bytes": plan.workspace_bytes,
        "session_bytes": plan.session_bytes,
        "reserve_bytes": plan.reserve_bytes,
        "cache_bytes": plan.cache_bytes,
        "unused_bytes": plan.unused_bytes,
        "page_bytes": plan.page_bytes,
        "pages": plan.page_count,
        "limited_by": plan.limited_by.value,
        "supported": not refusals,
        "refusals": refusals,
    }


def _described_refusal(error: CannotFit, demand: Demand, device: DeviceMemory, refusals: list[str]) -> dict[str, Any]:
    return {
        "fits": False,
        "sessions": 0,
        "context_tokens": demand.context_tokens,
        "kv_type": demand.kv_type.value,
        "device": {"kind": device.kind, "name": device.name},
        "memory_bytes": device.memory_bytes,
        "usable_bytes": device.usable_bytes,
        "weight_bytes": demand.weight_bytes,
        "workspace_bytes": demand.on(device).workspace_bytes,
        "session_bytes": demand.session_bytes,
        "needed_bytes": error.needed_bytes,
        "available_bytes": error.available_bytes,
        "reason": str(error),
        "advice": error.advice,
        "supported": not refusals,
        "refusals": refusals,
    }


def _target(gpu: str | None, memory: str | None, device: DeviceKind | None) -> Target:
    amount = amount_option(memory, "--memory")
    if gpu is not None:
        if device == "cpu":
            raise bad_input("--gpu and --device cpu: a GPU is no CPU; give --gpu alone")
        return _gpu_target(gpu, amount)
    if amount is None and device == "cuda":
        raise bad_input("--device cuda: give the GPU too, with --gpu, such as h200, or its --memory, such as 80GiB")
    if amount is None:
        return Target(cpu_memory(available_memory_bytes(), "this machine"))
    kind, name = (gpu_memory, "GPU") if device == "cuda" else (cpu_memory, "CPU")
    return Target(kind(amount, f"a {name} with {size(amount)}"))


def _gpu_target(name: str, amount: int | None) -> Target:
    """Return a GPU, or `amount` bytes of it."""
    try:
        gpu = find_gpu(name)
    except ValueError as error:
        raise bad_input(f"--gpu: {error}") from None
    if amount is None:
        if is_shared(name):
            told = f"{name.strip()} is the label of GPUs that pods share"
            raise bad_input(f"--gpu: {told}: give a pod's part with --memory, such as 6GiB")
        return Target(gpu.device, gpu)
    if amount > gpu.memory_bytes:
        raise bad_input(f"--memory: {exact_bytes(amount)}, but {gpu.name} has {exact_bytes(gpu.memory_bytes)}")
    return Target(gpu_memory(amount, f"{size(amount)} of {gpu.name}", gpu.device.cores), gpu)


def _nothing_planned(model: Model, *, json: bool) -> Exception:
    """Return what ends a plan for an architecture that nobody has described."""
    if not json:
        return Fault(f"{told_url(model.source)}: {model.refusals[0]}")
    print_json({"fits": None, "supported": False, "refusals": model.refusals})
    return typer.Exit(FAILED)


def _demand(
    model: Model,
    shape: ModelShape,
    kind: DeviceKind,
    *,
    context: int,
    kv_type: KVType,
    sessions: int | None,
    reserve: int | None,
) -> Demand:
    possible = kv_types(shape)
    if kv_type not in possible:
        raise bad_input(
            f"--kv-type: heads of this model cannot be kept as {kv_type}; possible are {', '.join(possible)}"
        )
    weights = weight_bytes(shape, model.header.tensors, kind)
    types = step_types(shape, model.header.tensors)
    return Demand(shape, weights, context, kv_type, sessions, reserve, STEP_ROWS[kind], types=types)


def _refusals(shape: ModelShape, kv_type: KVType, target: Target) -> list[str]:
    """Return why the device's engine would not run a model of a shape so, a line for each reason."""
    capability = None if target.gpu is None else target.gpu.compute_capability
    lines = [] if capability is None else gpu_refusals(capability)
    if target.device.kind == "cuda" and not lines:
        lines += shape_refusals(shape, kv_type, capability)
    run = run_kv_types(target.device.kind)
    if kv_type not in run:
        kept = " or ".join(kind.value for kind in KVType if kind in run)
        lines.append(f"keys and values as {kv_type}: the engine keeps {kept} on a GPU")
    return lines


def _show(model: Model, plan: CapacityPlan, target: Target, notes: list[str]) -> None:
    out = console()
    out.print(f"[bold]{_counted(plan.sessions, 'session')} of {_counted(plan.context_tokens, 'token')}[/bold]")
    out.print(f"{plain(model.title)} on {plan.device.name}", soft_wrap=True)
    out.print(f"[dim]limited by[/dim] {_limit(plan)}", soft_wrap=True)
    out.print()
    out.print(_bar(plan))
    out.print()
    out.print(_table(plan))
    out.print()
    for line in _remarks(plan, target):
        out.print(f"[dim]{line}[/dim]")
    for note in notes:
        out.print(f"[yellow]Not run:[/yellow] {plain(note)}")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _limit(plan: CapacityPlan) -> str:
    if plan.limited_by is LimitedBy.MAX_SESSIONS:
        return f"the sessions of a worker: {plan.sessions} at most"
    if plan.limited_by is LimitedBy.SESSIONS_ASKED:
        return f"the sessions asked for: {plan.sessions}"
    if plan.limited_by is LimitedBy.CACHE_RESERVE:
        return f"the cache reserve: one more session needs {size(plan.session_bytes)}"
    return f"memory: one more session needs {size(plan.session_bytes)}, {size(_left(plan))} is left"


def _left(plan: CapacityPlan) -> int:
    return plan.cache_bytes + plan.unused_bytes


def _parts(plan: CapacityPlan) -> list[tuple[str, int, str]]:
    cached = f"{plan.cache_bytes // plan.page_bytes:,} pages" if plan.page_bytes else ""
    return [
        ("weights", plan.weight_bytes, ""),
        ("workspace", plan.workspace_bytes, f"{plan.max_step_rows} rows"),
        ("sessions", plan.reserve_bytes, f"{plan.sessions:,} x {size(plan.session_bytes)}"),
        ("cache", plan.cache_bytes, cached),
        ("unused", plan.unused_bytes, ""),
    ]


def _table(plan: CapacityPlan) -> Table:
    table = columns("part", "", "bytes", "", "share")
    for name, amount, note in _parts(plan):
        colour, cell = PART_MARKS[name]
        mark = f"[{colour}]{cell}[/] {name}"
        table.add_row(mark, f"[dim]{note}[/dim]", f"{amount:,}", size(amount), f"{amount / plan.usable_bytes:.1%}")
    table.add_section()
    table.add_row("  usable", "", f"{plan.usable_bytes:,}", size(plan.usable_bytes), "")
    return table


def _bar(plan: CapacityPlan) -> Text:
    """Draw the parts to scale. Whole cells by the largest remainder would hide small parts: each edge is rounded
    instead.
    """
    from rich.text import Text  # noqa: PLC0415 - not for `--json`

    bar, begin = Text(), 0
    for name, amount, _ in _parts(plan):
        end = begin + amount
        cells = round(end * BAR_WIDTH / plan.usable_bytes) - round(begin * BAR_WIDTH / plan.usable_bytes)
        colour, cell = PART_MARKS[name]
        bar.append(cell * cells, style=colour)
        begin = end
    return bar


def _remarks(plan: CapacityPlan, target: Target) -> list[str]:
    kept = size(plan.device.memory_bytes - plan.usable_bytes)
    owner = "the worker's process" if plan.device.kind == "cpu" else "the CUDA context and a margin"
    lines = [
        f"{size(plan.device.memory_bytes)} of memory, {kept} of it for {owner}.",
        f"Keys and values are kept as {plan.kv_type}.",
    ]
    if target.gpu:
        milliseconds = 1000 * plan.weight_bytes / target.gpu.bandwidth
        rate = target.gpu.bandwidth / 1e12
        lines.append(f"Reading the weights once, at {rate:.1f} TB/s, takes {milliseconds:.3g} ms: no step is faster.")
    if plan.device.name == "this machine":
        lines.append(
            "Planned for the memory that is available on this machine now; --memory or --gpu plans for another."
        )
    return lines
